// Elements and texts. What a run recorded reaches the page as text only, never as HTML.

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

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim()
}

export function number(value, digits = 5) {
  if (value == null) return "-"
  if (Number.isNaN(value)) return "NaN"
  if (!Number.isFinite(value)) return value > 0 ? "infinite" : "-infinite"
  const size = Math.abs(value)
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(digits - 2)
  return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 10 })
}

// A value of the config or the like, as it was given: a seed is not rounded, and two that differ look different. Of
// a float32, as lineage has them, the shortest text that gives it again: 0.05, not 0.0500000007450581.
export function given(value) {
  if (value == null) return "-"
  if (typeof value !== "number" || Number.isInteger(value) || Math.fround(value) !== value) return String(value)
  let digits = 1
  while (Math.fround(Number(value.toPrecision(digits))) !== value) digits++
  return String(Number(value.toPrecision(digits)))
}

// The ticks of an axis, as short as they can be distinguished.
export function ticksSaid(ticks) {
  const shown = ticks.filter((tick) => tick != null)
  const largest = Math.max(...shown.map(Math.abs))
  const apart = Math.min(...shown.slice(1).map((tick, index) => Math.abs(tick - shown[index])))
  const digits = apart > 0 && Number.isFinite(apart) ? Math.min(12, Math.max(3, Math.ceil(Math.log10(largest / apart)) + 1)) : 4
  return ticks.map((tick) => {
    if (tick == null) return ""
    const rounded = Number(tick.toPrecision(digits))
    const size = Math.abs(rounded)
    return size !== 0 && (size < 1e-4 || size >= 1e5) ? rounded.toExponential().replace("e+", "e") : number(rounded, 12)
  })
}

export const whole = (value) => Math.round(value).toLocaleString("en-US")

export const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`

export const moment = (seconds) =>
  new Date(seconds * 1000).toLocaleString("sv-SE") // 2026-01-31 12:00:00

export function lasting(seconds) {
  if (seconds < 120) return `${number(seconds, 3)} s`
  if (seconds < 7200) return `${number(seconds / 60, 3)} min`
  return `${number(seconds / 3600, 3)} h`
}

// A round distance between ticks, so that there are about `count` of them from `low` to `high`.
export function tickDistance(low, high, count, least = 0) {
  const rough = Math.max((high - low) / Math.max(1, count), least, Number.MIN_VALUE)
  const power = 10 ** Math.floor(Math.log10(rough))
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough)
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
