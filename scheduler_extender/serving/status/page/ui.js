// The library of the page: Preact draws, htm writes its trees without a build.
import { h, render, Fragment } from "./vendor/preact.js";
import { useEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { h, render, Fragment, useEffect, useMemo, useRef, useState };
