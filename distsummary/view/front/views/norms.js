// Parameters by steps: how large weights, gradients and updates are, and which are not finite.

import { counted, h, number, whole } from "./dom.js"
import { clamp, heatCanvas, legend, restarts } from "./heat.js"

const WORDS = { gradient: "gradient norm", weight: "weight norm", update: "update norm", ratio: "update norm by weight norm", nonfinite: "elements that are not finite" }
const SIGNS = { gradient: 1, weight: 2, update: 6, ratio: 6, nonfinite: 0 } // as QUANTITIES in view/norms.py

// `open` shows the page of a parameter.
export function norms({ norms: data, marks }, kept, open) {
  if (!data || !Object.keys(data.maps).length) return []
  const rows = data.labels.length
  const columns = data.first_steps.length
  const isReduced = rows < data.parameters || columns < data.steps
  const maps = new Map(Object.entries(data.maps).map(([name, map]) => [name, kinds(data, name, map, rows, columns)]))
  const state = { quantity: data.first_bad && !maps.has("gradient") ? "nonfinite" : maps.keys().next().value, isRatio: false }
  const chosen = () => maps.get(state.quantity)[state.isRatio && state.quantity !== "nonfinite" ? "ratio" : "value"]

  const caption = h("figcaption")
  const said = h("p", { class: "readout", "aria-live": "polite" })
  const ofRow = h("p", { class: "readout" })
  const { element, reset, move, cell } = heatCanvas({
    height: 34 + rows * clamp(Math.floor(520 / rows), 4, 18), label: "norms: parameters by steps", chosen,
    left: (width) => Math.round(Math.min(260, width * 0.34)),
    over: (context, place) => restarts(context, place, marks.attempts),
    report: (cell) => {
      said.textContent = cell ? described(data, chosen(), cell) : ""
      ofRow.textContent = cell ? ends(data, chosen(), cell[0]) : ""
    },
  })
  element.addEventListener("click", () => cell() && open(data.labels[cell()[0]]))
  const redraw = () => {
    const one = chosen()
    let top = null
    one.highest.values.forEach((value, row) => { if (value > (top == null ? -Infinity : one.highest.values[top])) top = row })
    caption.replaceChildren(h("span", { class: "tag" }, WORDS[state.quantity]), legend(one),
      h("span", { class: "quiet" }, `highest: ${number(one.highest.values[top])}, ${data.names[one.highest.names[top]]} at step ${whole(one.highest.steps[top])}`
        + (isReduced ? "; a cell is the highest of its parameters and steps, to three digits" : "")))
    reset()
  }
  const show = (name) => {
    state.quantity = name
    redraw()
  }
  const choices = [...maps.keys()].map((name) =>
    h("label", {}, h("input", { type: "radio", name: "quantity", value: name, checked: name === state.quantity, onchange: () => show(name) }), ` ${WORDS[name]}`))
  const scales = [[false, "value"], [true, "ratio to the median of its row"]].map(([isRatio, text]) =>
    h("label", {}, h("input", { type: "radio", name: "norm-scale", checked: isRatio === state.isRatio, onchange: () => { state.isRatio = isRatio; redraw() } }), ` ${text}`))
  redraw()
  return [
    ...firstBad(data, maps.has("nonfinite") && (() => {
      const column = data.first_steps.findLastIndex((step) => step <= data.first_bad.step)
      const cell = maps.get("nonfinite").value.values.findIndex((value, index) => index % columns === column && value > 0)
      choices[[...maps.keys()].indexOf("nonfinite")].firstChild.checked = true
      show("nonfinite")
      move([Math.floor(cell / columns), column])
      element.focus()
    })),
    h("div", { class: "tools", role: "radiogroup", "aria-label": "which norm" }, choices),
    h("div", { class: "tools", role: "radiogroup", "aria-label": "what the colours show" }, scales,
      h("span", { class: "quiet" }, "striped: NaN or infinite; dashed lines: restarts. Point at a cell, or move with the arrow keys; a click opens its parameter.")),
    h("figure", { class: "wide" }, caption, element, said, ofRow),
    h("p", { class: "quiet" }, `${counted(data.parameters, "parameter")}${rows < data.parameters ? ` in ${counted(rows, "row")}, by module` : ""}, ${counted(data.steps, "step")}`
      + (data.rank == null ? "." : `; not merged yet: these are the elements that rank ${data.rank} holds.`)
      + (data.unread ? ` The norms of ${counted(data.unread, "step")} could not be read: distsummary fsck.` : "")),
  ]
}

// A map as heat.js draws it: its values, and their ratio to the median of the row's cells.
function kinds(data, name, map, rows, columns) {
  const bad = data.bad && SIGNS[name] ? data.bad.map((signs) => signs & SIGNS[name]) : null
  const shared = { ...map, name, rows, columns, bad, first_steps: data.first_steps, last_step: data.last_step, labels: data.labels, isLog: true }
  const ratio = new Float32Array(map.values.length).fill(NaN)
  for (let row = 0; row < rows; row++) {
    const cells = map.values.subarray(row * columns, (row + 1) * columns)
    const sorted = cells.filter((value) => !Number.isNaN(value)).sort()
    if (!sorted.length) continue
    const median = (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2
    if (median > 0) cells.forEach((value, column) => { ratio[row * columns + column] = value / median })
  }
  return { value: { ...shared, kind: "value" }, ratio: { ...shared, kind: "ratio", values: ratio, original: map.values } }
}

const about = (data, row) => (data.sizes[row] > 1 ? `${data.labels[row]} (${counted(data.sizes[row], "parameter")})` : data.labels[row])

function described(data, one, [row, column]) {
  const index = row * one.columns + column
  const first = one.first_steps[column]
  const last = column + 1 < one.columns ? one.first_steps[column + 1] - 1 : one.last_step
  const value = (one.original ?? one.values)[index]
  const steps = first === last ? `step ${whole(first)}` : `steps ${whole(first)} to ${whole(last)}`
  const bad = one.bad?.[index] ? "; NaN or infinite" : ""
  if (Number.isNaN(value)) return `${about(data, row)}, ${steps}: ${one.name === "nonfinite" ? "all elements are finite" : "no finite value"}${bad}`
  const isOne = data.sizes[row] === 1 && first === last
  const name = one.at_name && data.sizes[row] > 1 ? `, ${data.names[data.first_name[row] + one.at_name[index]]}` : ""
  const place = isOne ? "" : `${name} at step ${whole(first + one.at_step[index])}`
  const ratio = one.kind === "ratio" && !Number.isNaN(one.values[index]) ? `, ${number(one.values[index], 3)} times the median of its row` : ""
  return `${about(data, row)}, ${steps}: ${WORDS[one.name]} ${isOne ? "" : "up to "}${number(value, 3)}${ratio}${place}${bad}`
}

function ends(data, one, row) {
  if (Number.isNaN(one.highest.values[row])) return ""
  const end = (word, { values, steps, names }) =>
    `${word} ${number(values[row])} at step ${whole(steps[row])}${data.sizes[row] > 1 ? ` (${data.names[names[row]]})` : ""}`
  return `of the row, ${end("lowest", one.lowest)}, ${end("highest", one.highest)}`
}

function firstBad({ first_bad: bad }, show) {
  if (!bad) return [h("p", { class: "quiet" }, "All elements of weights and gradients were finite.")]
  const others = bad.others ? `, and ${counted(bad.others, "other parameter")} at this step` : ""
  const count = bad.elements ? ` (${counted(bad.elements, "element")})` : ""
  return [h("p", { class: "alert" }, `First NaN or infinite at step ${whole(bad.step)}: the ${bad.kind} of `, h("span", { class: "tag" }, bad.name), `${count}${others}. `,
    show && h("button", { onclick: show }, "show"))]
}
