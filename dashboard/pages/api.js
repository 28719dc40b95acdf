// Asks the dashboard's API, and follows its streams.

const AGAIN_MS = 2000;

export class Trouble extends Error {
  constructor(status, words) { super(words); this.status = status; }
}

export async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(path, { ...options, credentials: "same-origin", cache: "no-store" });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Trouble(response.status, answer.error ?? `the server answered ${response.status}`);
  return answer;
}

export const jobPath = (job) => `/api/jobs/${encodeURIComponent(job.namespace)}/${encodeURIComponent(job.name)}`;

// handlers: by the name of an event. Returns how to stop. The browser opens a broken stream again, and gets the whole anew. A page that nobody
// sees has no stream: a browser holds six connections to a server, and with as many tabs the next one would stay blank.
export function follow(query, handlers, live) {
  let stream = null;
  let later;
  const open = () => {
    const mine = (stream = new EventSource(`/api/stream?${new URLSearchParams(query)}`));
    mine.onopen = () => live(true);
    mine.onerror = async () => {
      if (mine !== stream) return;
      if (mine.readyState !== EventSource.CLOSED) { live(false); return; }
      // A refusal closes the stream for good; it says why, where one asks again.
      const why = await refusal(query);
      if (mine !== stream) return;
      if (why) { stop(); handlers.refused?.(why); return; }
      live(false);
      later = setTimeout(open, AGAIN_MS);
    };
    for (const [name, handler] of Object.entries(handlers)) {
      if (name !== "refused") mine.addEventListener(name, (event) => handler(JSON.parse(event.data)));
    }
  };
  const close = () => { clearTimeout(later); stream?.close(); stream = null; };
  const look = () => { if (document.hidden) close(); else if (!stream) open(); };
  const stop = () => { document.removeEventListener("visibilitychange", look); close(); };
  document.addEventListener("visibilitychange", look);
  look();
  return stop;
}

async function refusal(query) {
  try {
    const session = await ask("/api/session");
    if (!session.isLoggedIn) return new Trouble(401, "log in first");
    if (query.of === "job") await ask(`${jobPath(query)}?${new URLSearchParams({ kind: query.kind ?? "" })}`);
  } catch (trouble) {
    if (trouble instanceof Trouble && trouble.status !== 503) return trouble;
  }
  return null;
}
