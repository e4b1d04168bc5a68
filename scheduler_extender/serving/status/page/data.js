// What the page reads: views as streams of server-sent events, and single answers.
// The token stays in this tab: it is in the session's storage, never in an address.
import { serverTime } from "./format.js";

const TOKEN = "tandem.token";
const NAMESPACE = "tandem.namespace";
const API = "../v1/status/";
const SLOWEST_RETRY_MS = 15000;

const remembered = (name) => {
  try { return sessionStorage.getItem(name) || ""; } catch { return ""; }
};
const remember = (name, value) => {
  try { value ? sessionStorage.setItem(name, value) : sessionStorage.removeItem(name); } catch { /* memory alone */ }
};

let token = remembered(TOKEN);
let namespace = remembered(NAMESPACE);

export const session = {
  get hasToken() { return token !== ""; },
  get namespace() { return namespace; },
  signIn(newToken, newNamespace) {
    token = newToken.trim();
    namespace = newNamespace.trim();
    remember(TOKEN, token);
    remember(NAMESPACE, namespace);
  },
  signOut() { this.signIn("", ""); },
};

export class Refused extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

function address(path, parameters) {
  const all = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters || {})) if (value) all.set(name, value);
  if (namespace && !all.has("namespace")) all.set("namespace", namespace);
  const query = all.toString();
  return API + path + (query ? `?${query}` : "");
}

async function request(url, accept, signal) {
  const headers = { Accept: accept };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(url, { headers, signal, cache: "no-store", credentials: "same-origin" });
  if (answer.ok) return answer;
  let words = `HTTP ${answer.status}`;
  try {
    const body = await answer.json();
    words = body.detail || body.error || words;
  } catch { /* the status says enough */ }
  throw new Refused(answer.status, String(words));
}

// One answer, such as the events of a job.
export async function read(path, parameters, signal) {
  return (await request(address(path, parameters), "application/json", signal)).json();
}

// Both leave no listener behind: the signal lives as long as the view, and a view reads for hours.
const pause = (ms, signal) => new Promise((done) => {
  const end = () => {
    clearTimeout(timer);
    signal.removeEventListener("abort", end);
    done();
  };
  const timer = setTimeout(end, ms);
  signal.addEventListener("abort", end);
});

const shown = (signal) => new Promise((done) => {
  const look = () => {
    if (document.hidden && !signal.aborted) return;
    document.removeEventListener("visibilitychange", look);
    signal.removeEventListener("abort", look);
    done();
  };
  document.addEventListener("visibilitychange", look);
  signal.addEventListener("abort", look);
  look();
});

// Follow a view until `signal` aborts. A hidden tab reads nothing: it would take connections and time.
export async function follow(path, parameters, { onView, onTrouble, signal }) {
  let failures = 0;
  while (!signal.aborted) {
    await shown(signal);
    if (signal.aborted) return;
    const tab = new AbortController();
    const end = () => tab.abort();
    const hide = () => { if (document.hidden) tab.abort(); };
    signal.addEventListener("abort", end, { once: true });
    document.addEventListener("visibilitychange", hide);
    try {
      const answer = await request(address(path, parameters), "text/event-stream", tab.signal);
      for await (const event of eventsOf(answer.body)) {
        failures = 0;
        const message = JSON.parse(event.data);
        serverTime(message.time);
        if (event.name === "view") onView(message.view);
        else onTrouble(new Refused(event.name === "gone" ? 404 : 400, message.error));
      }
    } catch (error) {
      if (signal.aborted) return;
      if (!tab.signal.aborted) {
        failures += 1;
        onTrouble(error instanceof Refused ? error : new Refused(0, "The server does not answer."));
        if (error instanceof Refused && [400, 401, 403].includes(error.status)) return;
      }
    } finally {
      signal.removeEventListener("abort", end);
      document.removeEventListener("visibilitychange", hide);
    }
    const wait = failures ? Math.min(SLOWEST_RETRY_MS, 500 * 2 ** failures) : 100;
    await pause(wait * (0.75 + Math.random() / 2), signal);
  }
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const lines = text.slice(0, end).split("\n");
        text = text.slice(end + 2);
        const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        const name = lines.find((line) => line.startsWith("event: "));
        if (data) yield { name: name ? name.slice(7) : "view", data };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
