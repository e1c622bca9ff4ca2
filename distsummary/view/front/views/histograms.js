// Histograms over time: which share of the values lies where, step by step, with lowest, median and highest value.

import { canvas, counted, css, h, number, tickDistance, whole } from "./dom.js"
import { clamp, heatCanvas, legend, restarts } from "./heat.js"

const BINS = 48
const HEIGHT = 34 + BINS * 5
const FIRST = 6 // tags that are shown at first
const RIDGES = 12 // steps that are drawn one below the other

const state = { filter: "", all: false, isRidged: false } // also when the view is made again

// `open` shows the page of a parameter.
export function histograms({ histograms: data, marks }, kept, open) {
  if (!data) return []
  const grid = h("div", { class: "grid" })
  const said = h("p", { class: "quiet", "aria-live": "polite" })
  const cards = new Map()
  const more = h("button", { onclick: () => { state.all = true; arrange() } })
  const arrange = () => {
    const words = state.filter.toLowerCase()
    const found = data.tags.filter((one) => one.tag.toLowerCase().includes(words))
    const shown = state.all || words ? found : found.slice(0, FIRST)
    for (const one of shown) if (!cards.has(one)) cards.set(one, card(one, marks.attempts, open))
    grid.replaceChildren(...shown.map((one) => cards.get(one)))
    more.hidden = shown.length === found.length
    more.textContent = `show the other ${whole(found.length - shown.length)} tags`
    said.textContent = `${shown.length} of ${counted(data.tags.length, "tag")}`
      + (data.left_out ? `; ${whole(data.left_out)} more are not in this page: run.histograms(tag)` : "")
      + (state.isRidged ? ". A line is a step, from the first to the newest: the share of its values, over the values."
        : ". Colour: share of the values of a step. Band: the recorded bin in which the median lies; dashed: lowest and highest. Point at a cell, or move with the arrow keys.")
  }
  const filter = h("input", { type: "search", value: state.filter, placeholder: "filter tags", "aria-label": "filter histograms", oninput: () => { state.filter = filter.value; arrange() } })
  const ridged = h("input", { type: "checkbox", checked: state.isRidged, onchange: () => { state.isRidged = ridged.checked; cards.clear(); arrange() } })
  arrange()
  return [h("div", { class: "tools" }, filter, h("label", {}, ridged, "steps as ridges")), said, grid, more]
}

function card(one, starts, open) {
  const toAxis = (value) => (one.linear == null ? value : Math.asinh(value / one.linear))
  const ofAxis = (value) => (one.linear == null ? value : one.linear * Math.sinh(value))
  const [low, high] = [toAxis(one.low), toAxis(one.high)]
  const edge = (bin) => (bin === 0 ? one.low : bin === BINS ? one.high : ofAxis(low + ((high - low) * bin) / BINS))
  const part = (value) => (high - toAxis(value)) / (high - low) // of the height, from the top
  const count = one.steps.length
  // A column goes from the middle between its step and the one before to the middle between its step and the next;
  // the first begins at its step, and the last ends at its.
  const map = {
    kind: "value", rows: BINS, columns: count, isLog: true, hasGaps: false, values: new Float32Array(BINS * count).fill(NaN),
    first_steps: Float64Array.from(one.steps, (step, at) => (at ? (one.steps[at - 1] + step) / 2 : step)),
    last_step: one.steps[count - 1] ?? 0, most: 100,
    ticks: ticks(one, part),
  }
  for (let at = 0; at < count; at++) {
    for (let bin = 0; bin < BINS; bin++) {
      const share = one.shares[at * BINS + bin]
      if (share) map.values[(BINS - 1 - bin) * count + at] = (share / 255) ** 2 * one.highest * 100
    }
  }
  const bad = one.bad.findIndex((number) => number > 0)
  const said = h("p", { class: "readout", "aria-live": "polite" })
  const { element } = state.isRidged ? ridges(one, part) : heatCanvas({
    height: HEIGHT, label: `histograms of ${one.tag}: values by steps`, chosen: () => map, left: () => 76,
    over: (context, place) => {
      restarts(context, place, starts)
      lines(context, place, one, part)
    },
    report: (cell) => {
      if (!cell) { said.textContent = ""; return }
      const [row, at] = cell
      const value = map.values[row * count + at]
      const share = Number.isNaN(value) ? "none" : `about ${number(value, 2)} %`
      said.textContent = `step ${whole(one.steps[at])}: ${share} of ${counted(one.counts[at], "value")} from ${number(edge(BINS - 1 - row), 3)} to ${number(edge(BINS - row), 3)}`
        + `; lowest ${number(one.min[at])}, median ${median(one, at)}, highest ${number(one.max[at])}${one.bad[at] ? `; ${whole(one.bad[at])} NaN or infinite` : ""}`
    },
  })
  const left = one.recorded - count - one.unread
  const notes = [recordedBy(one), left > 0 ? `${count} of ${whole(one.recorded)} steps` : counted(count, "step")]
  if (one.linear != null) notes.push(`logarithmic beyond ±${number(one.linear, 2)}`)
  const alerts = []
  if (bad >= 0) alerts.push(`NaN or infinite values, first at step ${whole(one.steps[bad])}${left > 0 ? " of those shown" : ""}`)
  if (one.unread) alerts.push(`${counted(one.unread, "step")} could not be read: distsummary fsck`)
  return h("figure", {}, h("figcaption", {}, open ? h("button", { class: "link tag", title: "its own page", onclick: () => open(parameterOf(one.tag)) }, one.tag) : h("span", { class: "tag" }, one.tag), h("span", { class: "quiet" }, ` ${notes.join(", ")}`),
    alerts.length ? h("span", { class: "alert" }, ` ${alerts.join("; ")}`) : null, state.isRidged ? null : legend(map, "% of a step")), element, said)
}

// Steps one below the other, evenly spread, each as a line of the shares of its values.
function ridges(one, part) {
  const last = one.steps.length - 1
  const shown = [...new Set(Array.from({ length: RIDGES }, (_, at) => Math.round((at * last) / (RIDGES - 1))))].filter((at) => at >= 0)
  return canvas(HEIGHT, `histograms of ${one.tag}: ${counted(shown.length, "step")}, one below the other`, (context, width, height) => {
    const [left, right, top, bottom] = [60, width - 12, 56, height - 26]
    context.clearRect(0, 0, width, height)
    context.fillStyle = css("--quiet")
    context.textAlign = "center"
    for (const [at, text] of ticks(one, part)) context.fillText(text, right - at * (right - left), height - 8)
    context.textAlign = "right"
    shown.forEach((at, row) => {
      const y = bottom - ((shown.length - 1 - row) / Math.max(1, shown.length - 1)) * (bottom - top)
      context.beginPath()
      context.moveTo(left, y)
      for (let bin = 0; bin < BINS; bin++) context.lineTo(left + ((bin + 0.5) / BINS) * (right - left), y - (one.shares[at * BINS + bin] / 255) ** 2 * (top - 4))
      context.lineTo(right, y)
      context.fillStyle = css("--label")
      context.fill()
      context.strokeStyle = css(one.bad[at] > 0 ? "--bad" : "--blue")
      context.lineWidth = 1.4
      context.stroke()
      context.fillStyle = css("--quiet")
      context.fillText(whole(one.steps[at]), left - 6, y)
    })
  })
}

const parameterOf = (tag) => tag.replace(/^zz_gradient\//, "").replace(/\/auto$/, "")

function recordedBy({ ranks, is_merged: isMerged }) {
  if (ranks.length === 1) return `recorded by rank ${ranks[0]}`
  const some = `${ranks.slice(0, 4).join(", ")}${ranks.length > 4 ? ` and ${whole(ranks.length - 4)} more` : ""}`
  return `recorded by ranks ${some}; shown: ${isMerged ? "at each step that of the lowest one, or their shards put together" : `rank ${ranks[0]}, since the run is not merged yet`}`
}

function lines(context, { toX, top, bottom }, one, part) {
  const toY = (value) => top + clamp(part(value), 0, 1) * (bottom - top)
  const { text, label } = { text: css("--text"), label: css("--label") }
  for (const name of ["min", "max", "median_low", "median_high"]) {
    context.setLineDash(name.startsWith("median") ? [] : [5, 3])
    for (const [stroke, width] of [[label, 3.5], [text, 1.5]]) {
      context.strokeStyle = stroke
      context.lineWidth = width
      context.beginPath()
      one[name].forEach((value, at) => {
        if (Number.isNaN(value)) return
        if (at && !Number.isNaN(one[name][at - 1])) context.lineTo(toX(one.steps[at]), toY(value))
        else context.moveTo(toX(one.steps[at]), toY(value))
      })
      context.stroke()
    }
  }
  context.setLineDash([])
  context.fillStyle = css("--bad")
  one.bad.forEach((number, at) => number > 0 && context.fillRect(toX(one.steps[at]) - 2, top, 4, 8))
}

function median({ median_low: low, median_high: high }, at) {
  const [from, to] = [number(low[at], 3), number(high[at], 3)]
  return from === to ? from : `between ${from} and ${to}`
}

// Round values along the axis, [part of the height from the top, text].
function ticks(one, part) {
  const found = []
  if (one.linear == null) {
    const distance = tickDistance(one.low, one.high, 6)
    for (let at = Math.ceil(one.low / distance); at * distance <= one.high; at++) found.push(at * distance)
  } else {
    found.push(0)
    const most = Math.ceil(Math.log10(Math.max(Math.abs(one.low), Math.abs(one.high))))
    for (let power = most; 10 ** power >= one.linear / 2 && most - power < 40; power--) found.push(10 ** power, -(10 ** power))
  }
  const kept = []
  for (const value of found) {
    const at = part(value)
    if (value >= one.low && value <= one.high && kept.every(([other]) => Math.abs(other - at) > 0.06)) kept.push([at, number(value, 3)])
  }
  return kept
}
