// Write numbers and times for people. Pure.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value)) return WHOLE.format(value);
  const size = Math.abs(value);
  if (size >= 1000) return WHOLE.format(value);
  return size !== 0 && size < 0.001 ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
}

export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(1)} d`;
}

// In whole seconds.
export function ago(stamp, now = Date.now()) {
  const then = Date.parse(stamp);
  if (!Number.isFinite(then)) return "";
  const passed = (now - then) / 1000, whole = (value) => seconds(Math.floor(value)).replace(".0 s", " s");
  return Math.abs(passed) < 1 ? "now" : passed < 0 ? `in ${whole(-passed)}` : `${whole(passed)} ago`;
}

// The beginning of a standstill, for the end of the words about it.
export const began = (job) => (job.stillSince ? ` (began ${ago(job.stillSince)})` : "");

// The next step is late, so nobody knows how fast training is.
export const isLate = (job, now = Date.now()) => job.stepDueS !== null && now - Date.parse(job.steppedAt) > job.stepDueS * 1000;

export const lastStep = (job) => (isLate(job) ? `${number(job.step)}, ${ago(job.steppedAt)}` : number(job.step));

export function memory(text) {
  const found = /^(\d+)(Ki|Mi|Gi)?$/.exec(text ?? "");
  if (!found) return text ?? "";
  return `${((Number(found[1]) * { Ki: 1024, Mi: 1024 ** 2, Gi: 1024 ** 3 }[found[2]] || Number(found[1])) / 1024 ** 3).toFixed(1)} GiB`;
}

export const bytes = (value) => (value < 1024 ** 3 ? `${Math.round(value / 1024 ** 2)} MiB` : `${(value / 1024 ** 3).toFixed(1)} GiB`);

// At most so many of these rows ({at}, the oldest first): the first row of each part of their time, and the last row.
export function thinned(rows, most) {
  if (rows.length <= most) return [...rows];
  const begin = rows[0].at, whole = rows.at(-1).at - begin || 1;
  const part = (row) => Math.floor(((row.at - begin) / whole) * (most - 1));
  return rows.filter((row, at) => at === 0 || part(row) !== part(rows[at - 1]));
}

// A command line of elastic for the cluster that this dashboard shows.
export const command = (session, words) => ["elastic", words, session.commandOptions].filter(Boolean).join(" ");

export const count = (much, one, many = `${one}s`) => `${much} ${much === 1 ? one : many}`;
export const sum = (map) => Object.values(map ?? {}).reduce((all, one) => all + one, 0);
