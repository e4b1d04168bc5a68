// What if a waiting job asked for something else: a form, and both cases once it is asked.
import { html, useEffect, useRef, useState } from "./ui.js";
import { bytes, expected, number, percent } from "./format.js";
import { Ago, Card, Choice, Table } from "./parts.js";
import { Refused, read } from "./data.js";

const SHARES = [["", "as it is"], ["true", "yes"], ["false", "no"]];
const CASES = [["now", "As it is"], ["then", "With the change"]];
// Another replica may have the queue: each try has a connection of its own.
const MISDIRECTED = 421, TRIES = 10, AGAIN_MS = 200;

async function asked(path, parameters, signal) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await read(path, parameters, signal);
    } catch (error) {
      if (!(error instanceof Refused)) throw new Refused(0, "the server does not answer");
      if (error.status !== MISDIRECTED || tries === TRIES) throw error;
      await new Promise((done) => { setTimeout(done, AGAIN_MS); });
    }
  }
}

const range = (of, what) => {
  if (of.never) return "never";
  return of[what].earliest ? expected(of[what]) : "not within 48 h";
};

function Field({ label, value, least = "1", step = "1", onInput }) {
  return html`<label class="field"><span>${label}</span><input type="number" min=${least} step=${step} inputmode="decimal" value=${value} onInput=${(event) => onInput(event.target.value)}/></label>`;
}

function Both({ found }) {
  const loads = found.now.iterationSeconds == null ? [] : [
    { name: "Memory", right: true, show: ([name]) => bytes(found[name].memoryBytes) },
    { name: "Utilisation", right: true, show: ([name]) => percent(found[name].utilisationPercent) },
    { name: "Iteration", right: true, show: ([name]) => `${Number(found[name].iterationSeconds.toPrecision(3))} s` },
  ];
  return html`<${Table} label="Both cases" rows=${CASES} rowKey=${([name]) => name} empty=""
      columns=${[
        { name: "Case", show: ([, words]) => words },
        { name: "GPUs", right: true, show: ([name]) => number(found[name].gpus) },
        ...loads,
        { name: "Starts", show: ([name]) => range(found[name], "start") },
        { name: "Ends", show: ([name]) => range(found[name], "end") },
      ]}/>
    ${CASES.filter(([name]) => found[name].never).map(([name, words]) => html`<p class="note" key=${name}>${words}: ${found[name].never}.</p>`)}
    <p class="note">Four times in five, each lies between the two times. As of <${Ago} at=${found.asOf}/>.${loads.length ? " Memory, utilisation and iteration are those of one GPU; there are as many items in all." : ""}</p>`;
}

export function WhatIf({ doc }) {
  const [change, setChange] = useState({});
  const [state, setState] = useState({});
  const asking = useRef(null);
  useEffect(() => () => asking.current && asking.current.abort(), []);
  const set = (name) => (value) => setChange((before) => ({ ...before, [name]: value }));
  const submit = async (event) => {
    event.preventDefault();
    const parameters = Object.fromEntries(Object.entries({ ...change, memory: change.memory && String(Math.round(change.memory * 2 ** 30)) }).filter(([, value]) => value));
    if (!Object.keys(parameters).length) { setState({ trouble: "Nothing would change: fill in a field." }); return; }
    if (asking.current) asking.current.abort();
    const { signal } = asking.current = new AbortController();
    setState((before) => ({ found: before.found, busy: true }));
    try {
      const found = await asked(`jobs/${encodeURIComponent(doc.namespace)}/${encodeURIComponent(doc.name)}/what-if`, parameters, signal);
      if (!signal.aborted) setState({ found });
    } catch (error) {
      if (!signal.aborted) setState({ trouble: `No answer: ${error.message}.` });
    }
  };
  const memory = doc.load && doc.load.memorySource !== "whole-gpu" ? bytes(doc.load.memoryP95Bytes) : "whole GPUs";
  return html`<${Card} title="What if it asked for something else?" wide note="Only a forecast: the job stays as it is.">
    <form class="filters" onSubmit=${submit}>
      <${Field} label=${`GPUs (now ${number(doc.gpus)})`} value=${change.gpus || ""} onInput=${set("gpus")}/>
      <${Field} label=${`GPU memory, GiB (now ${memory})`} least="0.1" step="any" value=${change.memory || ""} onInput=${set("memory")}/>
      ${doc.demand.model && doc.demand.batchSize ? html`<${Field} label=${`Batch size (now ${number(doc.demand.batchSize)})`} value=${change.batch_size || ""} onInput=${set("batch_size")}/>` : ""}
      <${Choice} label="Shares its GPUs" value=${change.share || ""} options=${SHARES} onChange=${set("share")}/>
      <button type="submit">Ask</button>
    </form>
    <div role="status">${state.busy ? html`<p class="note">It is worked out. That takes a few seconds.</p>` : ""}${state.found ? html`<${Both} found=${state.found}/>` : ""}</div>
    ${state.trouble ? html`<p class="alert" role="alert">${state.trouble}</p>` : ""}
  <//>`;
}
