// Values as people read them. Each unit is written out; what is not known is a dash.
export const NONE = "–";

let skewMs = 0; // the server's clock less the browser's

export function serverTime(text) {
  const at = Date.parse(text);
  if (Number.isFinite(at)) skewMs = at - Date.now();
}

export const now = () => Date.now() + skewMs;

export function bytes(value) {
  if (value == null) return NONE;
  const gib = value / 2 ** 30;
  if (gib >= 1024) return `${(gib / 1024).toFixed(gib < 10240 ? 1 : 0)} TiB`;
  if (gib >= 10) return `${gib.toFixed(0)} GiB`;
  if (gib >= 1 || value === 0) return `${gib.toFixed(1)} GiB`;
  return `${(value / 2 ** 20).toFixed(0)} MiB`;
}

// The memory of a job of which nothing is known: its figure is 0 where no size of a GPU is known.
export const WHOLE_GPU = "a whole GPU";

export const number = (value) => (value == null ? NONE : value.toLocaleString("en"));

export function percent(value, digits = 0) {
  return value == null ? NONE : `${value.toFixed(digits)} %`;
}

export function slowdown(value) {
  if (value == null) return NONE;
  return value < 0.005 ? "none" : `${(value * 100).toFixed(0)} % slower`;
}

export function speed(value) {
  return value == null ? NONE : `${(100 / (1 + value)).toFixed(0)} %`;
}

export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s < 600 && s % 60 ? ` ${s % 60} s` : ""}`;
  if (s < 86400) {
    const minutes = Math.floor((s % 3600) / 60);
    return `${Math.floor(s / 3600)} h${minutes ? ` ${minutes} min` : ""}`;
  }
  const hours = Math.floor((s % 86400) / 3600);
  return `${Math.floor(s / 86400)} d${hours ? ` ${hours} h` : ""}`;
}

export function gpuTime(seconds) {
  if (seconds == null) return NONE;
  if (seconds < 3600) return `${(seconds / 60).toFixed(1)} GPU-minutes`;
  return `${(seconds / 3600).toFixed(1)} GPU-hours`;
}

export function since(text) {
  const at = Date.parse(text || "");
  return Number.isFinite(at) ? (now() - at) / 1000 : null;
}

// How long it was from one time to another.
export function between(first, last) {
  const [from, to] = [Date.parse(first || ""), Date.parse(last || "")];
  return Number.isFinite(from) && Number.isFinite(to) ? duration((to - from) / 1000) : NONE;
}

export function ago(text) {
  const seconds = since(text);
  if (seconds == null) return NONE;
  return seconds < 1 ? "just now" : `${duration(seconds)} ago`;
}

export function lasted(text) {
  const seconds = since(text);
  return seconds == null ? NONE : duration(seconds);
}

// A range of times from now on: "in 3 min to 9 min". Forecasts are no promises.
export function expected(range) {
  if (!range) return NONE;
  const first = -since(range.earliest);
  const last = range.latest ? -since(range.latest) : null;
  if (last == null) return first <= 0 ? "any time, perhaps much later" : `in ${duration(first)} or later`;
  if (last <= 0) return "any moment";
  if (first <= 0) return `within ${duration(last)}`;
  const [a, b] = [duration(first), duration(last)];
  return a === b ? `in ${a}` : `in ${a} to ${b}`;
}

export function clock(text) {
  const at = new Date(text || "");
  if (Number.isNaN(at.getTime())) return NONE;
  const day = new Date(now()).toDateString() === at.toDateString() ? "" : `${at.toLocaleDateString("en-CA")} `;
  return day + at.toLocaleTimeString("en-GB");
}

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

// The model without the maker, which all have in common.
export const gpuModel = (name) => (name || "").replace(/^NVIDIA /, "");

// A model that no job names any more: the hash of its graph in short, with the batch size.
export const modelName = (kind) => kind.replace(/[0-9a-f]{64}/, (hash) => shortId(hash));
// A GPU as people call it; by its UUID where no agent reports it.
export const gpuName = (place) => (place.number == null ? shortId(place.gpu) : place.number);
export const shortId = (uuid) => (uuid.length > 16 ? `${uuid.slice(0, 12)}…` : uuid);
