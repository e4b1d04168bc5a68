// The parts that all views are made of. A state is always a shape, a colour and a word.
import { html, useEffect, useRef, useState } from "./ui.js";
import { NONE, ago, clock, lasted, now, number } from "./format.js";
import { Term } from "./terms.js";

// --- addresses -----------------------------------------------------------------------------

export function href(view, parameters = {}) {
  const query = new URLSearchParams();
  if (view !== "overview") query.set("view", view);
  for (const [name, value] of Object.entries(parameters)) {
    if (value != null && value !== "" && value !== false) query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `?${text}` : "?";
}

export const jobHref = (job) => href("job", { namespace: job.namespace, name: job.name || job.job });
export const gpuHref = (node, gpu) => href("gpu", { node, gpu });
export const nodeHref = (node) => href("node", { node });
export const modelHref = (namespace, model) => href("model", { namespace, name: model });

export const Job = ({ job, short }) => html`<a class="name" href=${jobHref(job)}>${short ? "" : html`<span class="dim">${job.namespace}/</span>`}${job.name || job.job}</a>`;

// --- states ----------------------------------------------------------------------------------

const SHAPES = {
  ring: html`<circle cx="8" cy="8" r="5" fill="none" stroke="currentColor" stroke-width="2"/>`,
  dot: html`<circle cx="8" cy="8" r="5.5" fill="currentColor"/>`,
  diamond: html`<path d="M8 1.5 14.5 8 8 14.5 1.5 8z" fill="currentColor"/>`,
  pair: html`<g fill="none" stroke="currentColor" stroke-width="2"><circle cx="6" cy="8" r="4"/><circle cx="10" cy="8" r="4"/></g>`,
  triangle: html`<path d="M8 2 15 14H1z" fill="currentColor"/>`,
  dashes: html`<circle cx="8" cy="8" r="5" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="2.6 2.6"/>`,
  cross: html`<path d="m3 3 10 10M13 3 3 13" stroke="currentColor" stroke-width="2.6" fill="none"/>`,
  barred: html`<g fill="none" stroke="currentColor" stroke-width="2"><circle cx="8" cy="8" r="5.5"/><path d="m4.2 11.8 7.6-7.6"/></g>`,
  hands: html`<g fill="none" stroke="currentColor" stroke-width="1.8"><circle cx="8" cy="8" r="6"/><path d="M8 4.5V8l2.5 2"/></g>`,
  pause: html`<path d="M4 3h3v10H4zM9 3h3v10H9z" fill="currentColor"/>`,
  arrow: html`<path d="M2 8h9M8 4l4 4-4 4" stroke="currentColor" stroke-width="2" fill="none"/>`,
  play: html`<path d="M4 2.5 13.5 8 4 13.5z" fill="currentColor"/>`,
  down: html`<path d="M8 2v9M4 8l4 4 4-4" stroke="currentColor" stroke-width="2" fill="none"/>`,
  check: html`<path d="m2.5 8.5 3.7 3.7L13.5 4" stroke="currentColor" stroke-width="2.4" fill="none"/>`,
};

// For each state: its shape, its word, and what it means.
export const GPU_STATES = {
  idle: ["ring", "Idle", "No job holds it."],
  single: ["dot", "One job", "One job holds it; another could join."],
  exclusive: ["diamond", "Exclusive", "One job holds it and shares with none."],
  shared: ["pair", "Shared", "Two jobs or more share it."],
  slowed: ["triangle", "Slowed down", "A job on it is measured to be at least 10 % slower."],
  silent: ["dashes", "Silent", "Its agent does not answer, or has not reported recently."],
  unavailable: ["barred", "Not offered", "Its agent offers no place for jobs."],
  quarantined: ["cross", "Quarantined", "Its agent found it unhealthy."],
};
export const PHASES = {
  Queued: ["hands", "Queued", "It waits for GPUs."],
  Suspended: ["pause", "Suspended", "It gave up its GPUs and waits for others."],
  Admitted: ["arrow", "Admitted", "It has a plan; its pods are about to start."],
  Running: ["play", "Running", "Its pods run."],
  Preempting: ["down", "Preempting", "It is giving up its GPUs."],
  Completed: ["check", "Completed", "The workload completed."],
  Failed: ["cross", "Failed", "The workload failed."],
};

export const Shape = ({ of }) => html`<svg class="shape" viewBox="0 0 16 16" aria-hidden="true">${SHAPES[of]}</svg>`;

export function State({ of, table = GPU_STATES, bare }) {
  const [shape, word, means] = table[of] || ["ring", of, ""];
  return html`<span class=${`state s-${of}`} title=${means}><${Shape} of=${shape}/>${bare ? html`<span class="sr">${word}</span>` : html`<span>${word}</span>`}</span>`;
}

export const Phase = ({ of }) => html`<${State} of=${of} table=${PHASES}/>`;

// --- time ------------------------------------------------------------------------------------

export function useClock(everyMs = 1000) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) tick((n) => n + 1); }, everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
}

export const Ago = ({ at }) => (at ? html`<time datetime=${at} title=${clock(at)}>${ago(at)}</time>` : NONE);
export const For = ({ at }) => (at ? html`<time datetime=${at} title=${`since ${clock(at)}`}>${lasted(at)}</time>` : NONE);

// --- figures ---------------------------------------------------------------------------------

// Part of a whole as a bar; `mark` is a second value on the same scale. The text says the figures.
export function Meter({ value, mark, of, label, text, tone = "" }) {
  if (of == null || of <= 0) return html`<span>${text || NONE}</span>`;
  const part = Math.max(0, Math.min(1, (value || 0) / of)) * 100;
  const at = mark == null ? null : Math.max(0, Math.min(1, mark / of)) * 100;
  return html`<span class="meter"><svg viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${label}>
    <rect class="m-base" width="100" height="8" rx="1"/>
    <rect class=${`m-value ${tone}`} width=${part} height="8" rx="1"/>
    ${at == null ? "" : html`<rect class="m-mark" x=${Math.min(99, at)} width="1.2" height="8"/>`}
  </svg><span class="m-text">${text}</span></span>`;
}

// GPUs by state as one bar, and as links with their counts.
export function States({ counts, link, total }) {
  const order = Object.keys(GPU_STATES).filter((state) => counts[state]);
  let x = 0;
  const parts = order.map((state) => {
    const width = (counts[state] / Math.max(1, total)) * 1000;
    const part = html`<rect class=${`b-${state}`} x=${x} width=${Math.max(1.5, width - 2)} height="20"><title>${GPU_STATES[state][1]}: ${counts[state]}</title></rect>`;
    x += width;
    return part;
  });
  return html`<div class="states">
    <svg class="bar" viewBox="0 0 1000 20" preserveAspectRatio="none" aria-hidden="true">${parts}</svg>
    <ul class="legend">${Object.keys(GPU_STATES).map((state) => (counts[state] || state === "idle" ? html`<li key=${state}><a href=${link(state)}><${State} of=${state}/> <b>${number(counts[state] || 0)}</b></a></li>` : ""))}</ul>
  </div>`;
}

// --- lists -----------------------------------------------------------------------------------

// On a narrow screen each row becomes a card; the roles keep it a table for screen readers.
export function Table({ label, columns, rows, rowKey, empty }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  // A card begins with what it is about: the column that leads, else the first one.
  const leads = columns.find((c) => c.leads) || columns[0];
  const place = (c, shown) => [c.right && "right", c.wide && "wide", c === leads && "lead", shown === NONE && "none"].filter(Boolean).join(" ");
  return html`<table class="list" role="table" aria-label=${label}>
    <thead role="rowgroup"><tr role="row">${columns.map((c) => html`<th role="columnheader" scope="col" class=${c.right ? "right" : ""} key=${c.name}><${Term} name=${c.name}/></th>`)}</tr></thead>
    <tbody role="rowgroup">${rows.map((row) => html`<tr role="row" key=${rowKey(row)}>${columns.map((c) => {
      const shown = c.show(row);
      return html`<td role="cell" class=${place(c, shown)} data-label=${c.name} key=${c.name}><div class="cell">${shown}</div></td>`;
    })}</tr>`)}</tbody>
  </table>`;
}

export function Pager({ doc, view, parameters }) {
  if (!doc || doc.pages <= 1) return "";
  const to = (page) => href(view, { ...parameters, page: page > 1 ? page : "" });
  return html`<nav class="pager" aria-label="Pages">
    ${doc.page > 1 ? html`<a href=${to(doc.page - 1)} rel="prev">Previous</a>` : html`<span class="dim">Previous</span>`}
    <span>Page ${number(doc.page)} of ${number(doc.pages)}</span>
    ${doc.page < doc.pages ? html`<a href=${to(doc.page + 1)} rel="next">Next</a>` : html`<span class="dim">Next</span>`}
  </nav>`;
}

// A search field that changes the address once the user pauses.
export function Search({ label, value, onChange }) {
  const timer = useRef(0);
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  const change = (event) => {
    const next = event.target.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(next.trim()), 300);
  };
  return html`<label class="field"><span>${label}</span><input type="search" value=${text} maxlength="100" autocomplete="off" spellcheck=${false} onInput=${change}/></label>`;
}

export function Choice({ label, value, options, onChange }) {
  return html`<label class="field"><span>${label}</span><select value=${value} onChange=${(event) => onChange(event.target.value)}>
    ${options.map(([name, words]) => html`<option value=${name} selected=${name === value} key=${name}>${words}</option>`)}
  </select></label>`;
}

export const Card = ({ title, children, wide, note }) => html`<section class=${`card ${wide ? "wide" : ""}`}><h2>${title}</h2>${note ? html`<p class="note lead">${note}</p>` : ""}${children}</section>`;

export const Facts = ({ rows }) => html`<dl class="facts">${rows.filter((row) => row).map(([name, value]) => html`<div key=${name}><dt><${Term} name=${name}/></dt><dd>${value == null || value === "" ? NONE : value}</dd></div>`)}</dl>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

// --- time axis -------------------------------------------------------------------------------

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800];

// Bars on a time axis, one row each; the list below says the same in words.
export function TimeAxis({ bars, label }) {
  useClock(2000);
  if (!bars.length) return "";
  const end = now() / 1000;
  const starts = bars.map((bar) => Date.parse(bar.from) / 1000).filter(Number.isFinite);
  const begin = Math.max(end - 86400, Math.min(...starts, end - 60));
  const span = end - begin;
  const step = STEPS_S.find((each) => span / each <= 6) || 172800;
  const x = (at) => Math.max(0, Math.min(100, ((at - begin) / span) * 100));
  const ticks = [];
  for (let at = end - step; at > begin + span * 0.04; at -= step) ticks.push(at);
  return html`<figure class="axis" role="group" aria-label=${label}>
    <div class="axis-rows">${bars.map((bar) => {
      const from = Date.parse(bar.from) / 1000;
      const to = bar.to ? Date.parse(bar.to) / 1000 : end;
      if (!Number.isFinite(from) || to < begin) return "";
      return html`<div class="axis-row" key=${bar.key}>
        <span class="axis-name"><${Job} job=${bar.job} short=${bar.short}/></span>
        <svg class="axis-bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
          <rect class=${`run ${bar.tone || ""}`} x=${x(from)} y="1" width=${Math.max(0.4, x(to) - x(from))} height="8" rx="0.3"/>
          ${ticks.map((at) => html`<rect class="tick" x=${x(at)} width="0.12" height="10"/>`)}
        </svg>
        <span class="axis-text">${bar.text}</span>
      </div>`;
    })}</div>
    <figcaption class="note">From ${clock(new Date(begin * 1000).toISOString())} to now; a line every ${stepWords(step)}.</figcaption>
  </figure>`;
}

const stepWords = (s) => (s < 60 ? `${s} s` : s < 3600 ? `${s / 60} min` : `${s / 3600} h`);
