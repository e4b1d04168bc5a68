// The past: what jobs had of GPUs in the last days. It is read once, and again when the choice changes.
import { html, useEffect, useState } from "./ui.js";
import { Refused, read } from "./data.js";
import { NONE, duration, number, percent } from "./format.js";
import { Card, Choice, Empty, Facts, Job, Search, Table } from "./parts.js";

const FIGURES = ["asked", "held", "used", "saved", "lost"];
const BY = [["", "namespace"], ["user", "user"], ["model", "model"], ["gpu-type", "type of GPU"], ["day", "day"]];
const DAYS = [["", "7 days"], ["1", "today"], ["30", "30 days"]];

const predicted = (row, name) => row[`${name}PredictedGpuSeconds`] || 0;
const hours = (row, name) => ((row[`${name}GpuSeconds`] + predicted(row, name)) / 3600).toFixed(1);
const heads = { asked: "Asked", held: "GPU-hours held", used: "Used", saved: "Saved by sharing", lost: "Lost to slowdown" };
const at = (seconds) => new Date(seconds * 1000).toISOString();

function Waits({ waits }) {
  const rows = waits.slice(0, 8);
  const most = Math.max(...rows.map(({ seconds }) => seconds), 1);
  return html`<ul class="bars">${rows.map(({ reason, words, seconds }) => html`<li key=${reason}><span>${words}</span>
    <svg class="mini" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="m-base" width="100" height="6" rx="1"/><rect class="m-value" width=${(seconds / most) * 100} height="6" rx="1"/></svg>
    <b>${duration(seconds)}</b></li>`)}</ul>`;
}

function Shown({ doc, by }) {
  const { total } = doc;
  const guessed = ["used", "saved", "lost"].filter((name) => Math.abs(predicted(total, name)) >= 180);
  return html`<div class="cards">
      <${Card} title="In all" note=${`From ${doc.from} to ${doc.to}, days in UTC.`}>
        <${Facts} rows=${[["Jobs", number(total.jobs)], ...FIGURES.map((name) => [heads[name], `${hours(total, name)} GPU-hours`])]}/>
        ${guessed.length ? html`<p class="note">Predicted, not measured: ${guessed.map((name) => `${(predicted(total, name) / 3600).toFixed(1)} of ${name}`).join(", ")}.</p>` : ""}
        ${doc.since && doc.since > doc.from ? html`<p class="note">The record begins on ${doc.since}.</p>` : ""}
      <//>
      <${Card} title="Waits by reason">${total.waits.length ? html`<${Waits} waits=${total.waits}/>` : html`<${Empty}>No job has waited.<//>`}<//>
    </div>
    <${Card} title="GPU-hours" wide>
      <${Table} label="GPU-hours" rows=${doc.rows} rowKey=${(row) => row.key} empty="No job held a GPU in these days."
        columns=${[
          { name: by, show: (row) => row.key || NONE },
          { name: "Jobs", right: true, show: (row) => number(row.jobs) },
          ...FIGURES.map((name) => ({ name: heads[name], right: true, show: (row) => hours(row, name) })),
        ]}/>
    <//>
    <${Card} title="Jobs that ended" wide>
      <${Table} label="Jobs that ended" rows=${doc.jobs.slice(0, 50)} rowKey=${(job) => job.uid} empty="No job ended in these days."
        columns=${[
          { name: "Job", leads: true, show: (job) => html`<${Job} job=${job}/>` },
          { name: "Ended", show: (job) => html`<time datetime=${at(job.endedAt)}>${at(job.endedAt).slice(0, 16).replace("T", " ")}</time>` },
          { name: "Waited", show: (job) => duration(job.waitSeconds) },
          { name: "Ran", show: (job) => duration(job.runSeconds) },
          { name: "GPU-hours held", right: true, show: (job) => (job.heldGpuSeconds / 3600).toFixed(2) },
          { name: "Slowdown", show: (job) => (job.slowdown == null ? NONE : percent(job.slowdown * 100)) },
          { name: "Shared with", show: (job) => job.neighbours.map(([, slower], i) => `${(job.neighbourModels || [])[i] || "another model"} (${percent(slower * 100)})`).join(", ") || NONE },
        ]}/>
    <//>`;
}

export function Past({ parameters, go }) {
  const [doc, setDoc] = useState(null);
  const [trouble, setTrouble] = useState("");
  const set = (name, value) => go("past", { ...parameters, [name]: value });
  const asked = { days: parameters.days || "7", by: parameters.by || "namespace", namespace: parameters.namespace };
  useEffect(() => {
    const ending = new AbortController();
    read("report", asked, ending.signal).then(
      (answer) => { setDoc(answer); setTrouble(""); },
      (error) => { if (!ending.signal.aborted) setTrouble(error instanceof Refused ? error.message : "The server does not answer."); },
    );
    return () => ending.abort();
  }, [asked.days, asked.by, asked.namespace]);
  const by = (BY.find(([name]) => name === (parameters.by || "")) || BY[0])[1];
  return html`<div class="filters" role="search">
      <${Choice} label="Rows" value=${parameters.by || ""} options=${BY} onChange=${(value) => set("by", value)}/>
      <${Choice} label="Time" value=${parameters.days || ""} options=${DAYS} onChange=${(value) => set("days", value)}/>
      <${Search} label="Namespace" value=${parameters.namespace || ""} onChange=${(value) => set("namespace", value)}/>
    </div>
    ${trouble ? html`<p class="alert" role="alert">${trouble}</p>` : doc ? html`<${Shown} doc=${doc} by=${by[0].toUpperCase() + by.slice(1)}/>` : html`<${Empty}>Loading.<//>`}`;
}
