// One node, one GPU, one job, one model.
import { html, useEffect, useState } from "./ui.js";
import { NONE, WHOLE_GPU, bytes, clock, duration, expected, gpuModel, gpuName, gpuTime, modelName, number, percent, plural, shortId, slowdown, speed } from "./format.js";
import { Ago, Card, Empty, Facts, For, Job, Meter, Phase, State, Table, TimeAxis, gpuHref, href, modelHref, nodeHref, useClock } from "./parts.js";
import { GPU, SOURCES } from "./lists.js";
import { read } from "./data.js";
import { WhatIf } from "./whatif.js";

const jobKey = (job) => `${job.namespace}/${job.name || job.job}`;

// --- node ------------------------------------------------------------------------------------

export function Node({ doc }) {
  useClock(2000);
  return html`
    <${Card} title="Agent" wide><${Facts} rows=${[
      ["GPUs", html`<a href=${href("gpus", { node: doc.node })}>${number(doc.gpus)}</a>`],
      ["Jobs", html`<a href=${href("jobs", { node: doc.node })}>${number(doc.jobs)}</a>`],
      ["Last report", html`<${Ago} at=${doc.observedAt}/>`],
      ["Agent", doc.agentVersion],
      ["Driver", doc.driverVersion],
      ...doc.conditions.map((each) => [each.type, `${each.status}${each.message ? `: ${each.message}` : ""}`]),
    ]}/><//>
    <${Card} title="GPUs" wide><${Table} label="GPUs of the node" rows=${doc.rows} rowKey=${(gpu) => gpu.gpu} empty="The agent reports no GPU."
      columns=${[GPU.id, GPU.state, GPU.model, GPU.jobs, GPU.memory, GPU.utilisation, GPU.heat]}/><//>
    <${OutOfMemory} rows=${doc.outOfMemoryEvents}/>`;
}

function OutOfMemory({ rows }) {
  if (!rows.length) return "";
  return html`<${Card} title="Out of memory" wide note="Containers that failed while their GPU was full, in the last ten minutes.">
    <${Table} label="Out of memory" rows=${rows} rowKey=${(each) => each.uid + each.endedAt} empty=""
      columns=${[
        { name: "Time", show: (each) => html`<${Ago} at=${each.endedAt}/>` },
        { name: "Pod", show: (each) => `${each.namespace}/${each.pod}` },
        { name: "Held", right: true, show: (each) => bytes(each.memoryBytes) },
        { name: "Outgrew its prediction", wide: true, show: (each) => (each.blamed ? `${each.blamed.namespace}/${each.blamed.pod}: ${bytes(each.blamed.memoryBytes)}, predicted ${bytes(each.blamed.predictedBytes)}` : "no pod that is shown here") },
      ]}/><//>`;
}

// --- GPU -------------------------------------------------------------------------------------

// Memory as it is promised: the base of each resident, the largest peak, and what is used now.
function MemoryBar({ doc }) {
  const whole = doc.memoryCapacityBytes;
  if (!whole) return "";
  const scale = Math.max(whole, doc.memoryPromisedBytes, doc.memoryUsedBytes || 0);
  const x = (value) => (value / scale) * 100;
  let at = 0;
  const base = doc.residents.map((each, i) => {
    const part = html`<rect class=${`part p${i % 4}`} x=${x(at)} width=${Math.max(0, x(each.predicted.memoryBaseBytes) - 0.2)} y="2" height="12"/>`;
    at += each.predicted.memoryBaseBytes;
    return part;
  });
  const peak = Math.max(0, doc.memoryPromisedBytes - at);
  return html`<figure class="membar" role="group" aria-label="Memory">
    <svg viewBox="0 0 100 16" preserveAspectRatio="none" role="img" aria-label=${`Base memory ${bytes(at)}, largest peak ${bytes(peak)}, used now ${bytes(doc.memoryUsedBytes)}, capacity ${bytes(whole)}`}>
      <rect class="m-base" width=${x(whole)} y="2" height="12"/>${base}
      <rect class="peak" x=${x(at)} width=${x(peak)} y="2" height="12"/>
      ${doc.memoryUsedBytes == null ? "" : html`<rect class="m-mark" x=${Math.min(99.4, x(doc.memoryUsedBytes))} width="0.25" height="16"/>`}
      ${scale > whole ? html`<rect class="limit" x=${x(whole)} width="0.4" height="16"/>` : ""}
    </svg>
    <figcaption class="keys"><span class="key k-base">base of residents <b>${bytes(at)}</b></span><span class="key k-peak">largest peak <b>${bytes(peak)}</b></span><span class="key k-used">used now <b>${bytes(doc.memoryUsedBytes)}</b></span><span class="key k-rest">capacity <b>${bytes(whole)}</b></span></figcaption>
  </figure>`;
}

const pair = (predicted, measured) => html`<span class="pair"><span><span class="sr">predicted </span>${predicted}</span><span class="dim">/</span><b><span class="sr">measured </span>${measured}</b></span>`;

export function Gpu({ doc }) {
  useClock(2000);
  const bars = [
    ...doc.residents.map((each) => ({ key: `now-${each.pod}`, job: each, from: each.startedAt, text: each.startedAt ? html`<${For} at=${each.startedAt}/>` : each.hold, tone: each.measured.slowdown >= 0.1 ? "slow" : "now" })),
    ...doc.runs.slice(0, 20).map((run) => ({ key: `${run.pod}-${run.endedAt}`, job: run, from: run.startedAt, to: run.endedAt, text: duration((Date.parse(run.endedAt) - Date.parse(run.startedAt)) / 1000) })),
  ];
  return html`
    <${Card} title="State" wide>
      <p class="headline"><b>${doc.node}/${doc.number}</b> <${State} of=${doc.state}/>${doc.reason ? html` <span class="note">${doc.reason}</span>` : ""}</p>
      <${Facts} rows=${[
        ["Type", gpuModel(doc.model)],
        ["Jobs", html`<a href=${href("jobs", { gpu: doc.gpu })}>${plural(doc.jobs.length, "job")}</a> <span class="dim">of ${plural(doc.shares, "share")}</span>`],
        ["Utilisation", doc.utilisationPercent == null ? `${percent(doc.utilisationPromisedPercent)} predicted` : html`<b>${percent(doc.utilisationPercent)}</b> measured, ${percent(doc.utilisationPromisedPercent)} predicted`],
        ...(doc.memoryForeignBytes ? [["Memory held by others", bytes(doc.memoryForeignBytes)]] : []),
        ["Temperature", doc.temperatureCelsius == null ? NONE : `${doc.temperatureCelsius.toFixed(0)} °C`],
        ["Power", doc.powerWatts == null ? NONE : `${doc.powerWatts.toFixed(0)} W`],
        ["Health", doc.health],
        ["Uncorrected ECC errors", doc.eccUncorrectedErrors == null ? NONE : number(doc.eccUncorrectedErrors)],
        ["MIG, MPS", `${doc.mig == null ? NONE : doc.mig ? "on" : "off"}, ${doc.mps == null ? NONE : doc.mps ? "on" : "off"}`],
        ...(doc.slice ? [["Slice", `${doc.slice.profile}, slice ${doc.slice.number} of GPU ${doc.index}; temperature, errors and health are those of the GPU`], ["UUID of the GPU", html`<code>${doc.slice.parent}</code>`]] : []),
        ["Report", html`<${Ago} at=${doc.observedAt}/>`],
        ["UUID", html`<code>${doc.gpu}</code>`],
      ]}/>
    <//>
    <${Card} title="Memory" wide note="What is predicted of the resident jobs, against the capacity less what is reserved or used by processes of others."><${MemoryBar} doc=${doc}/><//>
    <${Card} title="Resident jobs" wide note=${doc.residents.length ? "Predicted / measured" : ""}>
      <${Table} label="Resident jobs" rows=${doc.residents} rowKey=${(each) => `${jobKey(each)}/${each.pod}`} empty="No job holds this GPU."
        columns=${[
          { name: "Job", show: (each) => html`<${Job} job=${each}/>${each.hold === "bound" ? "" : html` <span class="dim">(${each.hold})</span>`}` },
          { name: "Memory base", show: (each) => pair(bytes(each.predicted.memoryBaseBytes), bytes(each.measured.memoryBaseBytes ?? each.measured.memoryBytes)) },
          { name: "Memory peak", show: (each) => pair(bytes(each.predicted.memoryPeakBytes), bytes(each.measured.memoryPeakBytes)) },
          { name: "In the peak", show: (each) => pair(percent(each.predicted.peakProbability * 100), each.measured.peakProbability == null ? NONE : percent(each.measured.peakProbability * 100)) },
          { name: "Utilisation", show: (each) => pair(percent(each.predicted.utilisationPercent), percent(each.measured.utilisationPercent)) },
          { name: "Speed", show: (each) => pair(speed(each.predicted.slowdown), speed(each.measured.slowdown)) },
          { name: "Iterations", show: (each) => (each.measured.iterationsPerSecond == null ? NONE : `${each.measured.iterationsPerSecond.toFixed(2)} per s`) },
        ]}/>
      ${doc.residents.length ? html`<p class="note">Speed: as a part of the job's speed alone on a GPU.</p>` : ""}
    <//>
    ${bars.length ? html`<${Card} title="On this GPU" wide><${TimeAxis} bars=${bars} label="Jobs on this GPU over time"/><//>` : ""}
    <${OutOfMemory} rows=${doc.outOfMemoryEvents}/>`;
}

// --- job -------------------------------------------------------------------------------------

export function JobView({ doc, parameters }) {
  useClock(1000);
  const waits = doc.phase === "Queued" || doc.phase === "Suspended";
  const load = doc.load;
  const seen = doc.observed;
  const predicted = (size) => (load.memorySource === "whole-gpu" ? WHOLE_GPU : bytes(size));
  return html`
    <${Card} title=${waits ? "Why it waits" : "State"} wide>
      <p class="headline"><${Phase} of=${doc.phase}/>${waits ? html`<span>${doc.words}</span>` : ""}</p>
      ${waits ? html`
        <${Facts} rows=${[
          ["Waits for", html`<${For} at=${doc.waitingSince || doc.queuedAt}/>`],
          ["Position", doc.position == null ? NONE : html`<a href=${href("jobs", { phase: "Waiting" })}>${number(doc.position + 1)}</a>`],
          ["Expected start", doc.expectedStart ? html`<b>${expected(doc.expectedStart)}</b> <span class="dim">(four times in five; as of <${Ago} at=${doc.expectedStart.asOf}/>)</span>` : html`<span class="dim">not forecast yet</span>`],
        ]}/>
        <${Why} parts=${doc.why} at=${doc.foundAt}/>`
      : html`<p>${doc.message}</p>
        <${Facts} rows=${[
          doc.startedAt && ["Started", html`<${Ago} at=${doc.startedAt}/>`],
          doc.finishedAt && ["Ended", html`<${Ago} at=${doc.finishedAt}/>`],
          ["Speed now", doc.slowdown == null ? html`<span class="dim">not measured</span>` : html`<b>${speed(doc.slowdown)}</b> of alone (${slowdown(doc.slowdown)})`],
          ["Speed predicted", doc.predictedSlowdown == null ? NONE : `${speed(doc.predictedSlowdown)} of alone`],
          ["Service so far", gpuTime(doc.attainedGpuSeconds)],
        ]}/>`}
    <//>
    ${waits ? html`<${WhatIf} doc=${doc} key=${`what-if ${jobKey(doc)}`}/>` : ""}
    ${doc.places.length ? html`<${Card} title="Where it runs" wide>
      <ul class="inline">${doc.places.map((place) => html`<li key=${place.gpu}><a href=${nodeHref(place.node)}>${place.node}</a> / <a href=${gpuHref(place.node, place.gpu)}>${gpuName(place)}</a></li>`)}</ul>
      ${doc.placesInAll > doc.places.length ? html`<p class="note"><a href=${href("gpus", { job: jobKey(doc) })}>All ${number(doc.placesInAll)} GPUs</a></p>` : ""}
      <h3>Neighbours</h3>
      <${Table} label="Neighbours" rows=${doc.neighbours} rowKey=${jobKey} empty="No other job that is shown to you is on its GPUs."
        columns=${[
          { name: "Job", show: (each) => html`<${Job} job=${each}/>` },
          { name: "Model", show: (each) => (each.model ? html`<a href=${modelHref(each.namespace, each.model)}>${each.model}</a>` : NONE) },
          { name: "Shared GPUs", right: true, show: (each) => number(each.gpus.length) },
          { name: "Its slowdown", show: (each) => slowdown(each.slowdown) },
        ]}/>
    <//>` : ""}
    <${Card} title="Load: predicted and measured" wide>
      ${load ? html`<${Facts} rows=${[
        ["Memory base", pair(predicted(load.memoryBaseBytes), bytes(seen && seen.memoryBaseBytes))],
        ["Memory peak", pair(predicted(load.memoryBaseBytes + load.memoryPeakExtraBytes), bytes(seen && seen.memoryPeakBytes))],
        ["Memory, upper bound", load.memorySource === "whole-gpu" ? WHOLE_GPU : `${bytes(load.memoryP95Bytes)} (95 % of runs below)`],
        ["Utilisation", pair(percent(load.utilisationPercent), percent(seen && (seen.soloUtilisationPercent ?? seen.utilisationPercent)))],
        ["Utilisation, upper bound", percent(load.utilisationP95Percent)],
        ["Time in the peak", pair(percent(load.peakProbability * 100), percent(seen && seen.peakProbability != null ? seen.peakProbability * 100 : null))],
        ["Memory from", SOURCES[load.memorySource] || load.memorySource],
        ["Utilisation from", SOURCES[load.utilisationSource] || load.utilisationSource],
        ["Is the model known?", load.outOfDistribution ? html`<${State} of="slowed" table=${{ slowed: ["triangle", "Unlike the models from which the prediction was learned", ""] }}/>` : load.modelVersion ? html`<span title=${load.modelVersion}>Yes</span>` : "No learned model was used"],
        seen && seen.slowdown && ["Slowdown measured by", `${seen.slowdown.means}, against ${seen.slowdown.reference}${seen.slowdown.estimated ? ", an estimate" : ""}`],
      ]}/>` : html`<${Empty}>Nothing is predicted yet. Without a model or a declared load the job takes whole GPUs.<//>`}
      ${seen && seen.neighbours.length ? html`<h3>Slowed down next to</h3><ul class="inline">${seen.neighbours.map((each, i) => html`<li key=${i}>${each.model || (each.kind ? modelName(each.kind) : "a model of another namespace")}: <b>${slowdown(each.slowdown)}</b></li>`)}</ul>` : ""}
    <//>
    <${Card} title="What it asks for" wide><${Facts} rows=${[
      ["Workload", `${doc.workload.kind} ${doc.workload.name}`],
      ["GPUs", `${plural(doc.gpus, "GPU")}: ${(doc.roles.length ? doc.roles : [{ pods: doc.demand.gangSize, demand: doc.demand }]).map((role) => `${role.name ? `${role.name}, ` : ""}${plural(role.pods, "pod")} with ${role.demand.gpusPerPod} each`).join("; ")}`],
      ["Model", doc.demand.model ? html`<a href=${modelHref(doc.namespace, doc.demand.model)}>${doc.demand.model}</a>` : NONE],
      ["Batch", doc.demand.batchSize], ["Iterations", doc.demand.iterations],
      ["Shares", doc.demand.exclusive ? "no: exclusive" : "yes, where that pays"],
      ["May be preempted", doc.demand.checkpoint ? "yes: it saves its state" : "no"],
      ["Micro-batches", doc.subBatches.length ? doc.subBatches.map((each) => each.steps).join(", ") : NONE],
      ["Held", doc.hold ? "yes, by an administrator" : "no"],
    ]}/><//>
    <${Card} title="What happened" wide>
      <ol class="steps">${doc.timeline.map((step, i) => html`<li key=${`${step.what}-${i}`}><b>${step.what}</b> <${Ago} at=${step.at}/> <span class="dim">${clock(step.at)}</span></li>`)}</ol>
      ${doc.runs.length ? html`<${TimeAxis} label="Runs of its pods" bars=${doc.runs.slice(0, 20).map((run) => ({ key: run.pod, job: doc, short: true, from: run.startedAt, to: run.endedAt, text: run.node }))}/>` : ""}
      ${doc.decisions.length ? html`<h3>Decisions</h3><ul class="decisions">${doc.decisions.map((each) => html`<li key=${each.at + each.what}><b>${each.what}</b> <${Ago} at=${each.at}/><p>${each.why}</p></li>`)}</ul>` : ""}
    <//>
    <${Card} title="Pods" wide><${Table} label="Pods" rows=${doc.pods} rowKey=${(pod) => pod.pod} empty="None of its pods is left."
      columns=${[
        { name: "Pod", show: (pod) => pod.pod }, { name: "Phase", show: (pod) => pod.phase },
        { name: "Node", show: (pod) => (pod.node ? html`<a href=${nodeHref(pod.node)}>${pod.node}</a>` : NONE) },
        { name: "GPUs", show: (pod) => (pod.gpus.length ? pod.gpus.map((gpu, i) => html`${i ? ", " : ""}<a key=${gpu} href=${gpuHref(pod.node, gpu)}>${gpuName(doc.places.find((each) => each.gpu === gpu) || { gpu })}</a>`) : NONE) },
      ]}/><//>
    <${Events} path=${`jobs/${encodeURIComponent(doc.namespace)}/${encodeURIComponent(doc.name)}/events`} at=${doc.phase + doc.message}/>
    <${Yaml} path=${`jobs/${encodeURIComponent(doc.namespace)}/${encodeURIComponent(doc.name)}/yaml`} phase=${doc.phase}/>`;
}

// The reasons in full, each in a sentence or two, and when they were found out.
function Why({ parts, at }) {
  if (!parts.length) return html`<${Empty}>The queue has not looked at it yet. That takes a few seconds.<//>`;
  return html`<ul class="why">${parts.map((part, i) => html`<li key=${i}>${part}</li>`)}</ul>
    ${at ? html`<p class="note">Found out <${Ago} at=${at}/>.</p>` : ""}`;
}

function useRead(path, deps) {
  const [found, set] = useState({});
  useEffect(() => {
    if (!path) return undefined;
    const ending = new AbortController();
    read(path, {}, ending.signal).then((value) => set({ value }), (error) => { if (!ending.signal.aborted) set({ error: error.message, status: error.status }); });
    return () => ending.abort();
  }, [path, ...deps]);
  return found;
}

function Events({ path, at }) {
  const { value, error } = useRead(path, [at]);
  return html`<${Card} title="Events" wide>${error ? html`<${Empty}>${error}.<//>` : !value ? html`<${Empty}>Loading.<//>` : html`<${Table} label="Events" rows=${value.events} rowKey=${(each) => each.at + each.reason + each.name + each.note} empty="No events. The API server keeps events for an hour."
    columns=${[
      { name: "Time", show: (each) => html`<${Ago} at=${each.at}/>` },
      { name: "Type", show: (each) => html`<${State} of=${each.type === "Warning" ? "slowed" : "idle"} table=${{ slowed: ["triangle", "Warning", ""], idle: ["ring", "Normal", ""] }}/>` },
      { name: "Reason", show: (each) => each.reason }, { name: "Object", show: (each) => `${each.kind} ${each.name}` },
      { name: "Count", right: true, show: (each) => number(each.count) }, { name: "Message", wide: true, show: (each) => each.note },
    ]}/>`}<//>`;
}

function Yaml({ path, phase }) {
  const [open, setOpen] = useState(false);
  const { value, error } = useRead(open ? path : "", [phase]);
  return html`<details class="card wide" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}><summary><h2>YAML</h2></summary>
    ${error ? html`<${Empty}>${error}.<//>` : value ? html`<pre tabindex="0" aria-label="GPUJob as YAML"><code>${value.yaml}</code></pre>` : open ? html`<${Empty}>Loading.<//>` : ""}</details>`;
}

// --- model -----------------------------------------------------------------------------------

export function Model({ doc }) {
  const { value, error, status } = useRead(`models/${encodeURIComponent(doc.namespace)}/${encodeURIComponent(doc.model)}/profile`, [doc.jobs]);
  const features = value && value.features;
  return html`
    <${Card} title="Is it known?" wide>
      ${features ? html`<p class="headline"><${State} of="Completed" table=${{ Completed: ["check", "The predictor knows its graph", ""] }}/></p>
      <${Facts} rows=${[
        ["FLOPs of a forward pass", `${(features.flops / 1e9).toFixed(2)} GFLOP per sample`], ["Parameters", `${(features.parameters / 1e6).toFixed(2)} million`],
        ["Memory of parameters", bytes(features.parameterBytes)], ["Activations", bytes(features.activationBytes)], ["Largest tensor", bytes(features.largestTensorBytes)],
        ["Operators", `${number(features.nodes)}, ${number(features.depth)} deep`], ["Skew", percent(features.tensorSkew * 100)], ["Graph", html`<code>${shortId(value.featureHash)}</code>`],
      ]}/>` : html`<${Empty}>${error || "Loading."}${status === 404 ? ". Push its graph with `tandem model push FILE --name NAME`." : ""}<//>`}
    <//>
    <${Card} title="Predictions next to measurements" wide><${Table} label="Jobs of this model" rows=${doc.rows} rowKey=${jobKey} empty="No job of this model is left."
      columns=${[
        { name: "Job", show: (job) => html`<${Job} job=${job}/>` }, { name: "Phase", show: (job) => html`<${Phase} of=${job.phase}/>` },
        { name: "Batch", right: true, show: (job) => number(job.batchSize) }, { name: "GPU type", show: (job) => gpuModel(job.gpuModel) || NONE },
        { name: "Memory", show: (job) => pair(job.source === "whole-gpu" ? WHOLE_GPU : bytes(job.predictedMemoryBytes), bytes(job.measuredMemoryBytes)) },
        { name: "Utilisation", show: (job) => pair(percent(job.predictedUtilisationPercent), percent(job.measuredUtilisationPercent)) },
        { name: "From", show: (job) => SOURCES[job.source] || NONE }, { name: "Slowdown", show: (job) => slowdown(job.slowdown) },
      ]}/><p class="note">Predicted / <b>measured</b></p><//>
    ${value && value.observed && value.observed.length ? html`<${Card} title="What its runs used" wide><${Table} label="Observations" rows=${value.observed} rowKey=${(each) => each.gpuModel + each.batchSize + each.accumulationSteps} empty=""
      columns=${[
        { name: "GPU type", show: (each) => gpuModel(each.gpuModel) }, { name: "Batch", right: true, show: (each) => number(each.batchSize) }, { name: "Runs", right: true, show: (each) => number(each.runs) },
        { name: "Memory base", right: true, show: (each) => bytes(each.memoryBaseBytes) }, { name: "Memory peak", right: true, show: (each) => bytes(each.memoryPeakBytes) },
        { name: "Utilisation", right: true, show: (each) => percent(each.utilisationPercent) }, { name: "Last seen", show: (each) => html`<${Ago} at=${each.lastObservedAt}/>` },
      ]}/><//>` : ""}
    <${Card} title="Next to other models" wide><${Table} label="Pairs" rows=${doc.pairs} rowKey=${(pair) => pair.kind} empty="No job of this model has been measured next to another one."
      columns=${[
        { name: "Next to", show: (pair) => pair.model || (pair.kind ? modelName(pair.kind) : "models of other namespaces") },
        { name: "Slowdown", show: (pair) => slowdown(pair.slowdown) }, { name: "Jobs", right: true, show: (pair) => number(pair.runs) },
      ]}/><//>`;
}
