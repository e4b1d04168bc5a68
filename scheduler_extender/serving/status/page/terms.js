// What the terms of the page mean, and which page of the docs says more.
// A term of a column or of a fact that is here has its meaning as a hint, and leads to all of them.
import { html } from "./ui.js";

export const TERMS = {
  "Asked": ["GPUs that jobs asked for, times the time from the queue to the end.", "report.md"],
  "GPU-hours held": ["GPUs times the time for which containers ran; a shared GPU counts for each of its jobs.", "report.md"],
  "Used": ["Utilisation times the time held.", "report.md"],
  "Saved by sharing": ["What the same work would have taken more without sharing.", "report.md"],
  "Lost to slowdown": ["What neighbours on the same GPUs have cost.", "report.md"],
  "Position": ["Place in the queue, 1 first: among the jobs that you see.", "queueing.md"],
  "Phase": ["Where a job is: Queued, Admitted, Running, Preempting, Suspended, Completed or Failed.", "queueing.md"],
  "Waits": ["How long it has waited since it was queued, or since it last gave up its GPUs.", "queueing.md"],
  "Waited": ["From its arrival in the queue to its first start.", "queueing.md"],
  "Ran": ["From its first start to its end, times in which it was suspended included.", "queueing.md"],
  "Expected start": ["Between which times it starts in four of five forecasts. A forecast is no promise.", "queueing.md"],
  "Starts": ["Between which times it starts in four of five forecasts. A forecast is no promise.", "what-if.md"],
  "Ends": ["Between which times it ends in four of five forecasts.", "what-if.md"],
  "Iteration": ["Time of one iteration of training, with the GPU to itself.", "what-if.md"],
  "Service": ["GPUs times the time for which its containers ran.", "queueing.md"],
  "Service so far": ["GPUs times the time for which its containers ran.", "queueing.md"],
  "Slowdown": ["How much longer an iteration takes than with the GPU to itself: 20 % is 1.2 times as long. Measured by the agents.", "learning.md"],
  "Worst slowdown": ["The largest slowdown that was measured of a job of this model.", "learning.md"],
  "Its slowdown": ["How much longer an iteration of the neighbour takes than with the GPU to itself.", "learning.md"],
  "Speed": ["Speed of the job as a part of its speed with the GPU to itself.", "learning.md"],
  "Speed now": ["Speed of the job as a part of its speed with the GPU to itself, measured.", "learning.md"],
  "Speed predicted": ["The same, as it was expected before the jobs ran together.", "predictor.md"],
  "Mean slowdown": ["The mean over the jobs that share a GPU and whose slowdown was measured.", "learning.md"],
  "Shared with": ["Models of jobs that were on its GPUs, and how much they slowed it down.", "learning.md"],
  "Memory base": ["GPU memory outside of peaks.", "predictor.md"],
  "Memory peak": ["GPU memory in a peak of an iteration.", "predictor.md"],
  "Memory, upper bound": ["What 95 % of runs stay below. Jobs are placed by it.", "predictor.md"],
  "Memory used, predicted": ["GPU memory in use, as its driver reports it, and the sum that is predicted of its jobs.", "node-agent.md"],
  "Memory predicted": ["The most that a job of this model is predicted to use of a GPU.", "predictor.md"],
  "Memory held by others": ["GPU memory that no process of a job of Tandem holds.", "node-agent.md"],
  "Memory from": ["What the figure follows from: a measurement, a learned model, a formula of the graph, or what the job declares.", "predictor.md"],
  "Utilisation": ["Part of the time in which the GPU computes.", "predictor.md"],
  "Utilisation predicted": ["Part of the time in which a job of this model is predicted to keep the GPU busy.", "predictor.md"],
  "Utilisation, predicted": ["Part of the time in which the GPU computes, measured, and the sum that is predicted of its jobs.", "predictor.md"],
  "Utilisation, upper bound": ["What 95 % of runs stay below.", "predictor.md"],
  "Utilisation from": ["What the figure follows from: a measurement, a learned model, a formula of the graph, or what the job declares.", "predictor.md"],
  "Time in the peak": ["Part of an iteration in which memory is at its peak.", "predictor.md"],
  "In the peak": ["Part of an iteration in which memory is at its peak.", "predictor.md"],
  "Prediction from": ["What the figures follow from: a measurement, a learned model, a formula of the graph, or what the job declares.", "predictor.md"],
  "Model": ["The model that the job names in tandem.gpu/model: its graph was pushed with `tandem model push`.", "exporting.md"],
  "Micro-batches": ["Parts into which the job may split its batch, so that it needs less memory.", "jobs.md"],
  "May be preempted": ["Whether it may give up its GPUs for another job. It saves its state then.", "jobs.md"],
  "Shares": ["Whether it may be on a GPU with another job.", "jobs.md"],
  "Held": ["Whether an administrator keeps it from being started.", "queueing.md"],
  "Quota": ["What the namespace may hold when others need it, and at most.", "queueing.md"],
  "Shared GPUs": ["GPUs that hold two jobs or more.", "status-page.md"],
  "State": ["Of the states in which the GPU is, the one that comes first in the list.", "status-page.md"],
  "States": ["GPUs of the node by state.", "status-page.md"],
  "Report": ["When the node's agent last reported.", "node-agent.md"],
  "Last report": ["When the node's agent last reported.", "node-agent.md"],
  "Outgrew its prediction": ["Whether the container had used more memory than was predicted of it.", "node-agent.md"],
};

// The name of a column or a fact, with its hint.
export const Term = ({ name }) => (Object.hasOwn(TERMS, name)
  ? html`<a class="term" href="?view=terms" title=${TERMS[name][0]}>${name}</a>`
  : name);

export const Terms = () => html`<p class="note">What the columns and figures of this page mean. The pages are those of the folder docs of Tandem's sources.</p>
  <dl class="terms">${Object.keys(TERMS).sort().map((name) => html`<div key=${name}><dt>${name}</dt><dd>${TERMS[name][0]} <span class="dim">docs/${TERMS[name][1]}</span></dd></div>`)}</dl>`;
