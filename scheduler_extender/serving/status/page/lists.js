// The overview and the lists. Each number is a link to the objects that it counts.
import { html } from "./ui.js";
import { NONE, WHOLE_GPU, between, bytes, expected, gpuModel, gpuName, gpuTime, modelName, number, percent, plural, shortId, slowdown } from "./format.js";
import {
  Ago, Card, Choice, Empty, Facts, For, GPU_STATES, Job, Meter, PHASES, Pager, Phase, Search, State, States, Table,
  gpuHref, href, jobHref, modelHref, nodeHref, useClock,
} from "./parts.js";

const Count = ({ to, n, words }) => html`<a href=${to}>${words ? words : number(n)}</a>`;

// --- overview --------------------------------------------------------------------------------

const ATTENTION = {
  predictorSilent: ["silent", () => "The predictor does not answer", "New jobs are placed by what they declare, or take whole GPUs; those that are known run on. `tandem doctor` looks for the cause."],
  schedulerSilent: ["silent", () => "No scheduler leads", "Nothing new is placed; what runs goes on. `tandem doctor` looks for the cause."],
  quarantined: ["quarantined", (n) => `${plural(n, "GPU")} quarantined`, "Its node's agent found it unhealthy. Open the GPU for the reason."],
  unavailable: ["unavailable", (n) => `${plural(n, "GPU")} not offered`, "The agent offers no place for jobs. Open the GPU for the reason."],
  replicaSilent: ["silent", (n) => `${plural(n, "pod")} of Tandem without an answer`, "`kubectl describe pod` says why:"],
  silent: ["silent", (n) => `${plural(n, "node")} with a silent agent`, "Look at the pod of the agent on the node."],
  outOfMemory: ["slowed", (n) => `${plural(n, "node")} where a container ran out of GPU memory`, "Open the node for the containers."],
  slowed: ["slowed", (n) => `${plural(n, "GPU")} with a job that is slowed down`, "By 10 % or more, measured."],
  failed: ["Failed", (n) => `${plural(n, "job")} failed`, "Open the job for its events."],
  preempting: ["Preempting", (n) => `${plural(n, "job")} giving up GPUs`, ""],
  deleted: ["Preempting", (n) => `${plural(n, "deleted pod")} still holding GPUs`, "Its containers have not ended; `kubectl describe pod` shows the event DeletionOverdue."],
  held: ["Suspended", (n) => `${plural(n, "job")} held by an administrator`, "`tandem resume` lets a job go on."],
};

function Attention({ rows, overQuota, over }) {
  const all = rows.length + overQuota;
  if (!all) return html`<${Empty}>Nothing needs attention.<//>`;
  return html`<ul class="attention">
    ${rows.map((row) => {
      const [state, words, hint] = ATTENTION[row.kind] || ["slowed", (n) => `${n} ${row.kind}`, ""];
      return html`<li key=${row.kind}><${State} of=${state} table=${{ ...PHASES, ...GPU_STATES }} bare/><span><a href=${href(row.view, row.filter)}>${words(row.count)}</a>${hint ? html`<br/><span class="note">${[hint, (row.names || []).join(", ")].filter(Boolean).join(" ")}</span>` : ""}</span></li>`;
    })}
    ${over.map((row) => html`<li key=${`q-${row.namespace}`}><${State} of="slowed" bare/><span><a href=${href("jobs", { namespace: row.namespace, phase: "Running" })}>Namespace ${row.namespace} is over its quota</a><br/><span class="note">${quotaWords(row)}</span></span></li>`)}
  </ul>`;
}

function quotaWords(row) {
  const parts = [];
  if (row.quotaGpus != null) parts.push(`${number(row.gpusHeld)} of ${plural(row.quotaGpus, "GPU")}${row.gpusHeld !== row.gpus ? ` (${plural(row.gpus, "GPU")}; a shared one counts for each job)` : ""}`);
  if (row.quotaGpuSeconds != null) parts.push(`${gpuTime(row.gpuSecondsUsed)} of ${gpuTime(row.quotaGpuSeconds)} in the window`);
  if (row.maxGpus != null) parts.push(`at most ${plural(row.maxGpus, "GPU")}`);
  return parts.join(", ") || "no quota";
}

function Reasons({ rows, filter }) {
  const most = Math.max(...rows.map((row) => row.count), 1);
  return html`<ul class="bars">${rows.map((row) => html`<li key=${row.reason}>
    <a href=${href("jobs", { ...filter, phase: "Waiting", reason: row.reason })}>${row.words}</a>
    <svg class="mini" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="m-base" width="100" height="6" rx="1"/><rect class="m-value" width=${(row.count / most) * 100} height="6" rx="1"/></svg>
    <b>${number(row.count)}</b></li>`)}</ul>`;
}

// How much of the gain is measured, and how much only predicted.
function gainFrom({ gainGpus, gainMeasuredGpus, gpusCounted, gpusMeasured }) {
  if (gainMeasuredGpus == null) return "predicted";
  if (gpusMeasured === gpusCounted) return "measured";
  const signed = (value) => `${value >= 0 ? "+" : ""}${value.toFixed(1)}`;
  return `${signed(gainMeasuredGpus)} measured, ${signed(gainGpus - gainMeasuredGpus)} predicted`;
}

function Sharing({ sharing, filter }) {
  if (!sharing.gpus) return html`<${Empty}>No GPU is shared now. Jobs share a GPU where that is expected to finish more work.<//>`;
  const gain = sharing.gainGpus;
  return html`<div>
    <p class="headline">${gain == null ? html`<b>Not known yet</b>` : gain >= 0 ? html`<b>+${gain.toFixed(1)} GPUs</b> gained` : html`<b>${gain.toFixed(1)} GPUs</b> lost`}${gain == null ? "" : html` <span class="dim">${gainFrom(sharing)}</span>`}</p>
    <p class="note">${gain == null ? "No slowdown is known of the jobs that share." : `The jobs on ${plural(sharing.gpusCounted, "shared GPU")} do the work of ${(sharing.gpusCounted + gain).toFixed(1)} GPUs of their own.`}</p>
    <${Facts} rows=${[
      ["Shared GPUs", html`<${Count} to=${href("gpus", { ...filter, state: "sharing" })} words=${number(sharing.gpus)}/>`],
      ["Jobs on them", html`<${Count} to=${href("jobs", { ...filter, sharing: "true" })} n=${sharing.jobs}/>`],
      ["Mean slowdown", sharing.meanSlowdown == null ? NONE : html`${slowdown(sharing.meanSlowdown)} <span class="dim">of ${plural(sharing.jobsMeasured, "job")} measured</span>`],
    ]}/>
  </div>`;
}

export function Overview({ doc, parameters }) {
  useClock(5000);
  const { gpus, memory, jobs, sharing, namespaces, attention } = doc;
  const filter = parameters.namespace ? { namespace: parameters.namespace } : {};
  const over = namespaces.rows.filter((row) => row.overQuota);
  return html`
    <section class="card hero" aria-labelledby="h-gpus">
      <div class="hero-head"><h2 id="h-gpus"><${Count} to=${href("gpus", filter)} words=${plural(gpus.total, "GPU")}/> <span class="dim">on <${Count} to=${href("nodes", filter)} words=${plural(gpus.nodes, "node")}/></span></h2>
      ${gpus.models.length ? html`<p class="models">${gpus.models.slice(0, 4).map((each) => html`<a key=${each.model} href=${href("gpus", { ...filter, model: each.model })}>${number(each.count)} × ${gpuModel(each.model)}</a>`)}</p>` : ""}</div>
      ${gpus.total ? html`<${States} counts=${gpus.byState} total=${gpus.total} link=${(state) => href("gpus", { ...filter, state })}/>
      <div class="memory">${memory.usedBytes == null ? "" : html`<${Meter} value=${memory.usedBytes} of=${memory.capacityBytes} mark=${memory.promisedBytes} label=${`Memory: ${bytes(memory.usedBytes)} used, ${bytes(memory.promisedBytes)} predicted, of ${bytes(memory.capacityBytes)}`} text=${html`GPU memory: <b>${bytes(memory.usedBytes)}</b> used, <b>${bytes(memory.promisedBytes)}</b> predicted, of ${bytes(memory.capacityBytes)}`}/>`}</div>`
      : html`<${Empty}>No agent reports a GPU. Check the pods of the DaemonSet tandem-agent.<//>`}
    </section>
    <div class="cards">
      <${Card} title="Jobs">
        <ul class="phases">${Object.keys(PHASES).map((phase) => html`<li key=${phase} class=${jobs.byPhase[phase] ? "" : "none"}><a href=${href("jobs", { ...filter, phase })}><${Phase} of=${phase}/><b>${number(jobs.byPhase[phase])}</b></a></li>`)}</ul>
        ${jobs.longestWait ? html`<p class="note">Longest wait: <${For} at=${jobs.longestWait.waitingSince}/>, <${Job} job=${jobs.longestWait}/></p>` : ""}
      <//>
      <${Card} title="Why jobs wait">
        ${jobs.byReason.length ? html`<${Reasons} rows=${jobs.byReason} filter=${filter}/>` : html`<${Empty}>No job waits.<//>`}
      <//>
      <${Card} title="Did sharing pay?"><${Sharing} sharing=${sharing} filter=${filter}/><//>
      <${Card} title="Needs attention"><${Attention} rows=${attention} overQuota=${over.length} over=${over.slice(0, 5)}/><//>
    </div>
    <${Card} title="Next in the queue" wide>
      <${Table} label="Next in the queue" rows=${jobs.next} rowKey=${(job) => `${job.namespace}/${job.name}`} empty="No job waits."
        columns=${[QUEUE.position, QUEUE.job, QUEUE.gpus, QUEUE.waits, QUEUE.start, QUEUE.why]}/>
      ${jobs.waiting > jobs.next.length ? html`<p class="note"><a href=${href("jobs", { ...filter, phase: "Waiting" })}>All ${number(jobs.waiting)} waiting jobs</a></p>` : ""}
    <//>
    ${sharing.slowest.length ? html`<${Card} title="Slowed down most" wide>
      <${Table} label="Jobs slowed down most" rows=${sharing.slowest} rowKey=${(job) => `${job.namespace}/${job.name}`} empty=""
        columns=${[QUEUE.job, { name: "Model", show: (job) => job.model || NONE }, { name: "Slowdown", show: (job) => slowdown(job.slowdown) }, QUEUE.places]}/>
    <//>` : ""}
    <${Card} title="Namespaces" wide>
      <${Table} label="Namespaces" rows=${namespaces.rows} rowKey=${(row) => row.namespace} empty="No namespace has jobs."
        columns=${[
          { name: "Namespace", show: (row) => html`<a href=${href("overview", { namespace: row.namespace })}>${row.namespace}</a>` },
          { name: "Running", right: true, show: (row) => html`<a href=${href("jobs", { namespace: row.namespace, phase: "Running" })}>${number(row.running)}</a>` },
          { name: "Waiting", right: true, show: (row) => html`<a href=${href("jobs", { namespace: row.namespace, phase: "Waiting" })}>${number(row.waiting)}</a>` },
          { name: "GPUs", right: true, show: (row) => html`<a href=${href("gpus", { namespace: row.namespace })}>${number(row.gpus)}</a>` },
          { name: "Quota", show: (row) => html`${row.overQuota ? html`<${State} of="slowed" table=${{ slowed: ["triangle", "Over quota", ""] }}/> ` : ""}<span class=${row.quotaGpus == null && row.maxGpus == null ? "dim" : ""}>${quotaWords(row)}</span>` },
        ]}/>
      ${namespaces.total > namespaces.rows.length ? html`<p class="note">The first ${namespaces.rows.length} of ${number(namespaces.total)} namespaces.</p>` : ""}
    <//>`;
}

// --- jobs ------------------------------------------------------------------------------------

const places = (job) => (job.placesInAll ? html`<span class="places">${job.places.slice(0, 2).map((place, i) => html`${i ? ", " : ""}<a key=${place.gpu} href=${gpuHref(place.node, place.gpu)} title=${place.gpu}>${place.node}/${gpuName(place)}</a>`)}${job.placesInAll > 2 ? html`, <a href=${href("gpus", { job: `${job.namespace}/${job.name}` })}>${number(job.placesInAll)} in all</a>` : ""}</span>` : NONE);

export const QUEUE = {
  position: { name: "Position", right: true, show: (job) => (job.position == null ? NONE : number(job.position + 1)) },
  job: { name: "Job", leads: true, show: (job) => html`<${Job} job=${job}/>` },
  phase: { name: "Phase", show: (job) => html`<${Phase} of=${job.phase}/>` },
  gpus: { name: "GPUs", right: true, show: (job) => number(job.gpus) },
  model: { name: "Model", show: (job) => (job.model ? html`<a href=${modelHref(job.namespace, job.model)}>${job.model}</a>` : NONE) },
  waits: { name: "Waits", show: (job) => html`<${For} at=${job.waitingSince || job.queuedAt}/>` },
  start: { name: "Expected start", show: (job) => expected(job.expectedStart) },
  why: { name: "Why", wide: true, show: (job) => html`<span class="clamp" title=${job.message}>${job.short || NONE}</span>` },
  places: { name: "Where", show: places },
  time: {
    name: "Time",
    show: (job) => (job.finishedAt ? html`ended <${Ago} at=${job.finishedAt}/>` : job.startedAt && job.phase === "Running" ? html`runs for <${For} at=${job.startedAt}/>` : html`waits for <${For} at=${job.waitingSince || job.queuedAt}/>`),
  },
  slow: { name: "Slowdown", show: (job) => slowdown(job.slowdown) },
  waited: { name: "Waited", show: (job) => between(job.queuedAt, job.startedAt) },
  ran: { name: "Ran", show: (job) => between(job.startedAt, job.finishedAt) },
  service: { name: "Service", show: (job) => (job.attainedGpuSeconds ? gpuTime(job.attainedGpuSeconds) : NONE) },
  neighbours: {
    name: "Shared with",
    show: (job) => (job.neighbours && job.neighbours.length ? job.neighbours.map((each) => `${each.model || (each.kind ? modelName(each.kind) : "a model of another namespace")} (${slowdown(each.slowdown)})`).join(", ") : NONE),
  },
  ended: { name: "Ended", show: (job) => html`<${Ago} at=${job.finishedAt}/>` },
};

const REASONS = [
  ["", "any reason"], ["occupied", "GPUs are taken"], ["memory", "not enough memory"], ["memory_collision", "memory peaks collide"],
  ["utilisation", "GPUs overloaded"], ["interference", "slowdown too large"], ["too_large", "too large for the cluster"], ["not_worth", "sharing does not pay"], ["behind", "behind others"],
  ["making_room", "others make room"], ["quota", "quota"], ["held", "held"], ["blocked", "pods blocked"], ["preempted", "preempted"],
  ["nodes", "no suitable node"], ["unhealthy", "GPUs quarantined"], ["stale", "agents silent"], ["missing", "pods missing"], ["never_started", "never started"], ["not_offered", "GPUs not offered"], ["starting", "about to start"], ["other", "other"],
];

export function Jobs({ doc, parameters, go }) {
  useClock(2000);
  const set = (name, value) => go("jobs", { ...parameters, [name]: value, page: "" });
  const waiting = parameters.phase === "Waiting" || parameters.phase === "Queued" || parameters.phase === "Suspended" || parameters.reason;
  const ended = parameters.phase === "Completed" || parameters.phase === "Failed";
  const columns = ended
    ? [QUEUE.job, QUEUE.gpus, QUEUE.model, QUEUE.waited, QUEUE.ran, QUEUE.service, QUEUE.slow, QUEUE.neighbours, QUEUE.ended]
    : waiting
    ? [QUEUE.position, QUEUE.job, QUEUE.gpus, QUEUE.model, QUEUE.waits, QUEUE.start, QUEUE.why]
    : [QUEUE.job, QUEUE.phase, QUEUE.gpus, QUEUE.model, QUEUE.time, QUEUE.slow, QUEUE.places, QUEUE.why];
  return html`
    <div class="filters" role="search">
      <${Search} label="Name or model" value=${parameters.q || ""} onChange=${(value) => set("q", value)}/>
      <${Search} label="Namespace" value=${parameters.namespace || ""} onChange=${(value) => set("namespace", value)}/>
      <${Choice} label="Reason" value=${parameters.reason || ""} options=${REASONS} onChange=${(value) => set("reason", value)}/>
      <${Choice} label="Order" value=${parameters.sort || ""} onChange=${(value) => set("sort", value)}
        options=${[["", "queue"], ["waiting", "longest wait"], ["slowdown", "slowest"], ["gpus", "most GPUs"], ["started", "last started"], ["name", "name"]]}/>
    </div>
    <${Chips} all=${doc.byPhase} chosen=${parameters.phase} table=${PHASES} extra=${[["Waiting", "All waiting"]]} link=${(phase) => href("jobs", { ...parameters, phase, page: "" })}/>
    <${Given} parameters=${parameters} view="jobs" names=${["node", "gpu", "model", "sharing"]}/>
    <${Found} doc=${doc} one="job"/>
    <${Table} label="Jobs" rows=${doc.rows} rowKey=${(job) => `${job.namespace}/${job.name}`} columns=${columns}
      empty=${hasFilter(parameters) ? html`No job matches. <a href=${href("jobs")}>Show all jobs</a>` : "There are no jobs. Create a Job whose pods request tandem.gpu/gpu; it appears here within seconds."}/>
    <${Pager} doc=${doc} view="jobs" parameters=${parameters}/>`;
}

const hasFilter = (parameters) => Object.entries(parameters).some(([name, value]) => value && !["page", "sort"].includes(name));

const Found = ({ doc, one }) => html`<p class="found" role="status">${plural(doc.total, one)}</p>`;

function Chips({ all, chosen, table, link, extra = [] }) {
  const total = Object.values(all).reduce((a, b) => a + b, 0);
  const chip = (name, words, count) => html`<li key=${name}><a class="chip" href=${link(name)} aria-current=${(chosen || "") === name ? "true" : undefined}>${words}${count == null ? "" : html` <b>${number(count)}</b>`}</a></li>`;
  return html`<ul class="chips">
    ${chip("", "All", total)}
    ${extra.map(([name, words]) => chip(name, words))}
    ${Object.keys(table).map((name) => (all[name] || chosen === name ? chip(name, html`<${State} of=${name} table=${table}/>`, all[name] || 0) : ""))}
  </ul>`;
}

// Filters that have no field of their own, each with a link that removes it.
function Given({ parameters, view, names }) {
  const given = names.filter((name) => parameters[name]);
  if (!given.length) return "";
  const words = { sharing: () => "sharing a GPU" };
  return html`<ul class="chips">${given.map((name) => html`<li key=${name}><a class="chip remove" href=${href(view, { ...parameters, [name]: "", page: "" })} aria-label=${`Remove the filter ${name} ${parameters[name]}`}>${words[name] ? words[name]() : `${name}: ${parameters[name]}`} <span aria-hidden="true">×</span></a></li>`)}</ul>`;
}

// --- GPUs and nodes --------------------------------------------------------------------------

export function jobsOf(gpu) {
  if (!gpu.jobs.length) return html`<span class="dim">none</span>`;
  return html`<ul class="inline">${gpu.jobs.map((job) => html`<li key=${`${job.namespace}/${job.name}/${job.pod}`}><${Job} job=${job}/>${job.hold === "bound" ? "" : html` <span class="dim">(${job.hold})</span>`}${job.slowdown >= 0.1 ? html` <${State} of="slowed" bare/> <span class="dim">${slowdown(job.slowdown)}</span>` : ""}</li>`)}</ul>`;
}

export const GPU = {
  gpu: { name: "GPU", show: (gpu) => html`<a class="name" href=${gpuHref(gpu.node, gpu.gpu)} title=${gpu.gpu}><span class="dim">${gpu.node}/</span>${gpu.number}</a>` },
  id: { name: "GPU", show: (gpu) => html`<a class="name" href=${gpuHref(gpu.node, gpu.gpu)}>${gpu.number} <span class="dim">${shortId(gpu.gpu)}</span></a>` },
  state: { name: "State", show: (gpu) => html`<span title=${gpu.reason}><${State} of=${gpu.state}/>${gpu.reason ? html`<span class="note"> ${gpu.reason}</span>` : ""}</span>` },
  model: { name: "Type", show: (gpu) => gpuModel(gpu.model) },
  jobs: { name: "Jobs", wide: true, show: jobsOf },
  memory: {
    name: "Memory used, predicted",
    show: (gpu) => html`<${Meter} value=${gpu.memoryUsedBytes} mark=${gpu.memoryPromisedBytes} of=${gpu.memoryCapacityBytes} label=${`${bytes(gpu.memoryUsedBytes)} used, ${bytes(gpu.memoryPromisedBytes)} predicted, of ${bytes(gpu.memoryCapacityBytes)}`}
      text=${html`${bytes(gpu.memoryUsedBytes)}, ${bytes(gpu.memoryPromisedBytes)} <span class="dim">of ${bytes(gpu.memoryCapacityBytes)}</span>`}/>`,
  },
  utilisation: {
    name: "Utilisation, predicted",
    show: (gpu) => html`<${Meter} value=${gpu.utilisationPercent} mark=${gpu.utilisationPromisedPercent} of=${100} label=${`${percent(gpu.utilisationPercent)} measured, ${percent(gpu.utilisationPromisedPercent)} predicted`} text=${`${percent(gpu.utilisationPercent)}, ${percent(gpu.utilisationPromisedPercent)}`}/>`,
  },
  heat: { name: "Temp.", right: true, show: (gpu) => (gpu.temperatureCelsius == null ? NONE : `${gpu.temperatureCelsius.toFixed(0)} °C`) },
};

export function Gpus({ doc, parameters, go }) {
  const set = (name, value) => go("gpus", { ...parameters, [name]: value, page: "" });
  return html`
    <div class="filters" role="search">
      <${Search} label="Node or UUID" value=${parameters.q || ""} onChange=${(value) => set("q", value)}/>
      <${Search} label="Namespace" value=${parameters.namespace || ""} onChange=${(value) => set("namespace", value)}/>
      <${Choice} label="Order" value=${parameters.sort || ""} onChange=${(value) => set("sort", value)}
        options=${[["", "node"], ["utilisation", "most utilised"], ["memory", "most memory used"], ["temperature", "hottest"], ["jobs", "most jobs"]]}/>
    </div>
    <${Chips} all=${doc.byState} chosen=${parameters.state} table=${GPU_STATES} extra=${[["busy", "In use"], ["sharing", "Held by two jobs or more"]]} link=${(state) => href("gpus", { ...parameters, state, page: "" })}/>
    <${Given} parameters=${parameters} view="gpus" names=${["model", "node", "job"]}/>
    <${Found} doc=${doc} one="GPU"/>
    <${Table} label="GPUs" rows=${doc.rows} rowKey=${(gpu) => `${gpu.node}/${gpu.gpu}`} columns=${[GPU.gpu, GPU.state, GPU.model, GPU.jobs, GPU.memory, GPU.utilisation, GPU.heat]}
      empty=${hasFilter(parameters) ? html`No GPU matches. <a href=${href("gpus")}>Show all GPUs</a>` : "No agent reports a GPU. Check the pods of the DaemonSet tandem-agent."}/>
    <${Pager} doc=${doc} view="gpus" parameters=${parameters}/>`;
}

export function Nodes({ doc, parameters, go }) {
  useClock(2000);
  const set = (name, value) => go("nodes", { ...parameters, [name]: value, page: "" });
  return html`
    <div class="filters" role="search">
      <${Search} label="Name" value=${parameters.q || ""} onChange=${(value) => set("q", value)}/>
      <${Choice} label="With a GPU that is" value=${parameters.state || ""} onChange=${(value) => set("state", value)}
        options=${[["", "in any state"], ...Object.entries(GPU_STATES).map(([name, [, words]]) => [name, words.toLowerCase()]), ["outOfMemory", "out of memory lately"]]}/>
    </div>
    <${Found} doc=${doc} one="node"/>
    <${Table} label="Nodes" rows=${doc.rows} rowKey=${(node) => node.node}
      empty=${parameters.q || parameters.state ? html`No node matches. <a href=${href("nodes")}>Show all nodes</a>` : "No agent reports. Check the pods of the DaemonSet tandem-agent."}
      columns=${[
        { name: "Node", show: (node) => html`<a class="name" href=${nodeHref(node.node)}>${node.node}</a>` },
        { name: "GPUs", right: true, show: (node) => html`<a href=${href("gpus", { node: node.node })}>${number(node.gpus)}</a>` },
        { name: "Type", show: (node) => node.models.map(gpuModel).join(", ") },
        { name: "States", wide: true, show: (node) => html`<ul class="inline">${Object.entries(node.byState).map(([state, count]) => html`<li key=${state}><a href=${href("gpus", { node: node.node, state })}><${State} of=${state}/> <b>${count}</b></a></li>`)}</ul>` },
        { name: "Jobs", right: true, show: (node) => html`<a href=${href("jobs", { node: node.node })}>${number(node.jobs)}</a>` },
        { name: "Report", show: (node) => html`<${Ago} at=${node.observedAt}/>` },
      ]}/>
    <${Pager} doc=${doc} view="nodes" parameters=${parameters}/>`;
}

// --- models ----------------------------------------------------------------------------------

export const SOURCES = {
  observed: "observed in earlier runs", model: "learned model", formula: "formula over the graph", declared: "declared by the user", "whole-gpu": "nothing known: a whole GPU",
};

export function Models({ doc, parameters, go }) {
  const set = (name, value) => go("models", { ...parameters, [name]: value, page: "" });
  return html`
    <div class="filters" role="search"><${Search} label="Model" value=${parameters.q || ""} onChange=${(value) => set("q", value)}/>
    <${Search} label="Namespace" value=${parameters.namespace || ""} onChange=${(value) => set("namespace", value)}/></div>
    <${Found} doc=${doc} one="model"/>
    <${Table} label="Models" rows=${doc.rows} rowKey=${(row) => `${row.namespace}/${row.model}`}
      empty=${parameters.q || parameters.namespace ? html`No model matches. <a href=${href("models")}>Show all models</a>` : "No job names a model. Annotate pods with tandem.gpu/model, and push the graph with `tandem model push`."}
      columns=${[
        { name: "Model", show: (row) => html`<a class="name" href=${modelHref(row.namespace, row.model)}><span class="dim">${row.namespace}/</span>${row.model}</a>` },
        { name: "Jobs", right: true, show: (row) => html`<a href=${href("jobs", { namespace: row.namespace, model: row.model })}>${number(row.jobs)}</a>` },
        { name: "Running", right: true, show: (row) => html`<a href=${href("jobs", { namespace: row.namespace, model: row.model, phase: "Running" })}>${number(row.running)}</a>` },
        { name: "Prediction from", show: (row) => html`${SOURCES[row.source] || NONE}${row.unfamiliar ? html` <${State} of="slowed" table=${{ slowed: ["triangle", "unfamiliar", "The model is unlike those from which the prediction was learned."] }}/>` : ""}` },
        { name: "Memory predicted", right: true, show: (row) => (row.source === "whole-gpu" ? WHOLE_GPU : bytes(row.predictedMemoryBytes)) },
        { name: "measured", right: true, show: (row) => bytes(row.measuredMemoryBytes) },
        { name: "Utilisation predicted", right: true, show: (row) => percent(row.predictedUtilisationPercent) },
        { name: "Worst slowdown", show: (row) => slowdown(row.worstSlowdown) },
      ]}/>
    <${Pager} doc=${doc} view="models" parameters=${parameters}/>`;
}
