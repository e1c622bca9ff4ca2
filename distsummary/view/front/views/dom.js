// Elements and texts. What a run recorded reaches the page as text only, never as HTML.

export { counted, given, lasting, moment, number, ticksSaid, tickDistance, whole } from "../base/format"
import { counted } from "../base/format"
import { css } from "../base/store"

export { css }

export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value)
    else if (key.startsWith("aria-")) element.setAttribute(key, `${value}`)
    else if (value === true) element.setAttribute(key, "")
    else if (value !== false && value != null) element.setAttribute(key, value)
  }
  element.append(...present(children))
  return element
}

// The children that are there; null and false, which `append` would write as words, are left out.
export const present = (children) => children.flat().filter((child) => child != null && child !== false)

// A state and, of a run, how many findings it has: red for an error, amber for warnings.
export function badge(state, { level = "", findings = 0 } = {}) {
  const usual = ["finished", "running"].includes(state) ? "good" : ["no run.json", "unknown", "superseded"].includes(state) ? "plain" : "bad"
  const kind = level === "error" || usual === "bad" ? "bad" : level ? "warn" : usual
  return h("span", { class: `badge ${kind}` }, findings ? `${state}, ${counted(findings, "finding")}` : state)
}

let lifetime = undefined // the signal that ends the listeners of the elements that are being made

// What `make` returns; when the signal is aborted, the listeners that `on` added meanwhile are removed.
export function made(signal, make) {
  lifetime = signal
  try {
    return make()
  } finally {
    lifetime = undefined
  }
}

// Listen to an event of the whole page: "theme", or what a view reports to the others ("rank", "tag", "verdict").
export const on = (name, listener) => document.addEventListener(name, listener, { signal: lifetime })

export function table(head, rows, { numbers = [], caption = null } = {}) {
  const cell = (kind) => (content, column) => h(kind, numbers.includes(column) ? { class: "number" } : {}, content)
  return h(
    "table",
    {},
    caption && h("caption", {}, caption),
    head && h("thead", {}, h("tr", {}, head.map(cell("th")))),
    h("tbody", {}, rows.map((row) => h("tr", row.attributes ?? {}, (row.cells ?? row).map(cell("td"))))),
  )
}

// A canvas as sharp as the screen; `draw(context, width, height)` is called at each change of size or theme.
export function canvas(height, label, draw) {
  const element = h("canvas", { role: "img", "aria-label": label })
  element.style.height = `${height}px`
  const paint = () => {
    const width = element.clientWidth
    if (!width) return
    const ratio = window.devicePixelRatio || 1
    element.width = Math.round(width * ratio)
    element.height = Math.round(height * ratio)
    const context = element.getContext("2d")
    context.scale(ratio, ratio)
    context.font = `12px ${css("--font")}`
    draw(context, width, height)
  }
  new ResizeObserver(paint).observe(element)
  on("theme", paint)
  return { element, paint }
}
