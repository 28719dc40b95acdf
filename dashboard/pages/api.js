// Asks the dashboard's API, and follows its streams.

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

// handlers: by the name of an event. Returns how to stop. The browser opens a broken stream again, and gets the whole anew.
export function follow(query, handlers, live) {
  const stream = new EventSource(`/api/stream?${new URLSearchParams(query)}`);
  let ended = false;
  stream.onopen = () => live(true);
  stream.onerror = async () => {
    if (ended) return;
    live(false);
    if (stream.readyState !== EventSource.CLOSED) return;
    // A refusal closes the stream for good; it says why, where one asks again.
    try {
      const session = await ask("/api/session");
      if (!session.isLoggedIn) { handlers.refused?.(new Trouble(401, "log in first")); return; }
      if (query.of === "job") await ask(`${jobPath(query)}?${new URLSearchParams({ kind: query.kind ?? "" })}`);
    } catch (trouble) {
      if (trouble instanceof Trouble && trouble.status !== 503) { handlers.refused?.(trouble); return; }
    }
    if (!ended) setTimeout(() => { if (!ended) stop = follow(query, handlers, live); }, 2000);
  };
  for (const [name, handler] of Object.entries(handlers)) {
    if (name === "refused") continue;
    stream.addEventListener(name, (event) => handler(JSON.parse(event.data)));
  }
  let stop = () => stream.close();
  return () => { ended = true; stream.close(); stop(); };
}
