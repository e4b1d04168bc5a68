// The shell: which view, whose token, which theme. A view is a stream; the address has its filters.
import { Fragment, html, render, useEffect, useRef, useState } from "./ui.js";
import { Refused, follow, read, session } from "./data.js";
import { Card, Empty, href } from "./parts.js";
import { Gpus, Jobs, Models, Nodes, Overview } from "./lists.js";
import { Gpu, JobView, Model, Node } from "./details.js";
import { Past } from "./past.js";
import { Terms } from "./terms.js";

const part = encodeURIComponent;
// For each view: its path in the API, its title, its component, and the tab that it belongs to.
const VIEWS = {
  overview: [() => "overview", (p) => (p.namespace ? `Namespace ${p.namespace}` : "Overview"), Overview, "overview"],
  gpus: [() => "gpus", () => "GPUs", Gpus, "gpus"],
  gpu: [(p) => `gpus/${part(p.node)}/${part(p.gpu)}`, (p) => `GPU of node ${p.node}`, Gpu, "gpus"],
  nodes: [() => "nodes", () => "Nodes", Nodes, "nodes"],
  node: [(p) => `nodes/${part(p.node)}`, (p) => `Node ${p.node}`, Node, "nodes"],
  jobs: [() => "jobs", () => "Jobs", Jobs, "jobs"],
  job: [(p) => `jobs/${part(p.namespace)}/${part(p.name)}`, (p) => `Job ${p.namespace}/${p.name}`, JobView, "jobs"],
  models: [() => "models", () => "Models", Models, "models"],
  model: [(p) => `models/${part(p.namespace)}/${part(p.name)}`, (p) => `Model ${p.namespace}/${p.name}`, Model, "models"],
  // It reads a report by itself, once.
  past: [null, () => "Past", Past, "past"],
  // All of it is in the page: nothing is read.
  terms: [null, () => "Terms", Terms, ""],
};
const TABS = [["overview", "Overview"], ["jobs", "Jobs"], ["gpus", "GPUs"], ["nodes", "Nodes"], ["models", "Models"], ["past", "Past"]];
const OBJECTS = new Set(["gpu", "node", "job", "model"]);

function place() {
  const parameters = Object.fromEntries(new URLSearchParams(location.search));
  const view = Object.hasOwn(VIEWS, parameters.view) ? parameters.view : "overview";
  delete parameters.view;
  return { view, parameters };
}

const themes = ["auto", "light", "dark"];
function storedTheme() {
  try { return themes.includes(localStorage.getItem("tandem.theme")) ? localStorage.getItem("tandem.theme") : "auto"; } catch { return "auto"; }
}
function useTheme() {
  const [theme, set] = useState(storedTheme);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("tandem.theme", theme); } catch { /* for this page alone */ }
  }, [theme]);
  return [theme, () => set(themes[(themes.indexOf(theme) + 1) % themes.length])];
}

function SignIn({ why, onSignIn }) {
  const [token, setToken] = useState("");
  const [namespace, setNamespace] = useState(session.namespace);
  const submit = (event) => {
    event.preventDefault();
    session.signIn(token, namespace);
    onSignIn();
  };
  return html`<${Card} title="Sign in">
    <p>The page shows what your token may read in the API server. The token stays in this tab.</p>
    ${why ? html`<p class="alert" role="alert">${why}</p>` : ""}
    <form onSubmit=${submit} class="form">
      <label class="field"><span>Token</span><input type="password" value=${token} onInput=${(e) => setToken(e.target.value)} autocomplete="off" spellcheck=${false} aria-describedby="token-hint"/></label>
      <p class="note" id="token-hint">For example from <code>kubectl create token ACCOUNT</code>.</p>
      <label class="field"><span>Namespace</span><input type="text" value=${namespace} onInput=${(e) => setNamespace(e.target.value)} autocomplete="off" spellcheck=${false} maxlength="63" aria-describedby="ns-hint"/></label>
      <p class="note" id="ns-hint">Empty for the whole cluster.</p>
      <button type="submit">Sign in</button>
    </form>
  <//>`;
}

function App() {
  const [at, setAt] = useState(place);
  const [state, setState] = useState({ doc: null, trouble: null, key: "" });
  const [scope, setScope] = useState(undefined); // what the reader sees; undefined until it is known
  const [refusal, setRefusal] = useState(null);
  const [attempt, setAttempt] = useState(0);
  const [theme, nextTheme] = useTheme();
  const heading = useRef(null);
  const moved = useRef(false);

  const go = (view, parameters, replace) => {
    history[replace ? "replaceState" : "pushState"](null, "", href(view, parameters));
    setAt(place());
  };

  useEffect(() => {
    const back = () => { moved.current = true; setAt(place()); };
    const click = (event) => {
      if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
      const link = event.target.closest && event.target.closest("a[href^='?']");
      if (!link) return;
      event.preventDefault();
      const before = place();
      history.pushState(null, "", link.getAttribute("href") === "?" ? location.pathname : link.getAttribute("href"));
      const after = place();
      // A filter keeps the place on the page; another view begins at its heading.
      moved.current = before.view !== after.view || OBJECTS.has(after.view);
      setAt(after);
    };
    addEventListener("popstate", back);
    document.addEventListener("click", click);
    return () => { removeEventListener("popstate", back); document.removeEventListener("click", click); };
  }, []);

  const [path, title, View, tab] = VIEWS[at.view];
  const heads = title(at.parameters);
  const key = `${at.view}?${new URLSearchParams(at.parameters)}`;

  useEffect(() => {
    const ending = new AbortController();
    const namespace = at.parameters.namespace || session.namespace;
    read("scope", namespace ? { namespace } : {}, ending.signal).then(
      (answer) => { setScope(answer.namespace); setRefusal(null); },
      (error) => { if (!ending.signal.aborted) setRefusal(error instanceof Refused ? error : new Refused(0, "The server does not answer.")); },
    );
    return () => ending.abort();
  }, [attempt]);

  const ready = scope !== undefined && !refusal;
  useEffect(() => {
    if (!ready || !path) return undefined;
    const ending = new AbortController();
    const wanted = path(at.parameters);
    follow(wanted, OBJECTS.has(at.view) ? {} : at.parameters, {
      signal: ending.signal,
      onView: (doc) => setState({ doc, trouble: null, key }),
      onTrouble: (error) => {
        if (error.status === 401) setRefusal(error);
        else setState((before) => ({ ...before, trouble: error, key: before.key === key || error.status === 0 ? before.key : key, doc: before.key === key ? before.doc : null }));
      },
    });
    return () => ending.abort();
  }, [key, ready, attempt]);

  useEffect(() => {
    document.title = `${heads} · Tandem`;
    if (moved.current && heading.current) {
      moved.current = false;
      scrollTo(0, 0);
      heading.current.focus({ preventScroll: true });
    }
  }, [key]);

  const doc = !path ? {} : state.key === key ? state.doc : null;
  const trouble = state.key === key || (state.trouble && state.trouble.status === 0) ? state.trouble : null;
  const signOut = () => { session.signOut(); setScope(undefined); setState({ doc: null, trouble: null, key: "" }); setAttempt(attempt + 1); };

  let body;
  if (refusal && (refusal.status === 401 || refusal.status === 403)) {
    const why = session.hasToken || refusal.status === 403 ? refusal.message : "";
    body = html`<${SignIn} why=${why} onSignIn=${() => { setRefusal(null); setScope(undefined); setAttempt(attempt + 1); }}/>`;
  } else if (refusal) {
    body = html`<${Empty}>${refusal.message} <button type="button" onClick=${() => { setRefusal(null); setAttempt(attempt + 1); }}>Try again</button><//>`;
  } else if (trouble && trouble.status === 404) {
    body = html`<${Empty}>There is no such object, or your token may not see it. <a href=${href(tab)}>Back to the list</a><//>`;
  } else if (trouble && [400, 403].includes(trouble.status)) {
    body = html`<p class="alert" role="alert">${trouble.message}</p><p><a href=${href(tab)}>Without filters</a></p>`;
  } else if (doc) {
    body = html`<${View} doc=${doc} parameters=${at.parameters} go=${(view, parameters) => go(view, parameters, true)} key=${at.view}/>`;
  } else {
    body = html`<${Empty}>Loading.<//>`;
  }

  const signedIn = !refusal || refusal.status === 0;
  const crumb = OBJECTS.has(at.view) ? html`<p class="crumb"><a href=${href(tab)}>${TABS.find(([name]) => name === tab)[1]}</a>${at.view === "gpu" ? html` / <a href=${href("node", { node: at.parameters.node })}>${at.parameters.node}</a>` : ""}</p>` : "";
  return html`<${Fragment}>
    <a class="skip" href="#main">Skip to the content</a>
    <header class="top">
      <a class="brand" href=${href("overview")}><svg viewBox="0 0 24 16" aria-hidden="true"><circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2.5"/><circle class="second" cx="15" cy="8" r="5.5" fill="none" stroke-width="2.5"/></svg>Tandem</a>
      ${signedIn ? html`<nav aria-label="Views"><ul>${TABS.map(([name, words]) => html`<li key=${name}><a href=${href(name)} aria-current=${tab === name ? (at.view === name ? "page" : "true") : undefined}>${words}</a></li>`)}</ul></nav>` : html`<span class="grow"></span>`}
      <div class="tools">
        ${ready ? html`<span class="scope">${scope == null ? "Whole cluster" : html`Namespace <b>${scope}</b>`}</span>` : ""}
        ${ready ? html`<span class=${`live ${trouble ? "off" : ""}`} role="status">${trouble ? "Not connected" : doc ? "Live" : "Connecting"}</span>` : ""}
        <button type="button" class="quiet" onClick=${nextTheme} aria-label=${`Theme: ${theme}. Change it.`}>${{ auto: "Auto", light: "Light", dark: "Dark" }[theme]}</button>
        ${session.hasToken && signedIn ? html`<button type="button" class="quiet" onClick=${signOut}>Sign out</button>` : ""}
      </div>
    </header>
    <main id="main" tabindex="-1">
      <div class="head">${crumb}<h1 ref=${heading} tabindex="-1">${signedIn ? heads : "Tandem"}</h1></div>
      ${trouble && ![400, 403, 404].includes(trouble.status) ? html`<p class="alert" role="alert">${trouble.message} ${doc ? "The page shows what it last knew." : ""} It tries again.</p>` : ""}
      ${body}
    </main>
  <//>`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App}/>`, root);
