// The run in one screen: how it is, what is wrong with it, what was trained and with what.

import { counted, given, h, lasting, moment, table, whole } from "./dom.js"

const GOOD = ["finished", "running"]
const ABOVE = ["state", "ranks", "attempts"] // facts that the cards have
const ROWS = 64 // of a table that may be long

export function overview({ overview: run, timeline }) {
  const ended = Math.max(...timeline.bars.map((bar) => bar.end), 0)
  const facts = [
    ["state", badge(run.state, run)],
    ["ranks", run.ranks.length === run.world_size ? whole(run.world_size) : `${run.ranks.length} of ${whole(run.world_size)}`],
    ["steps", run.steps ? `${whole(run.steps[0])} to ${whole(run.steps[1])}` : "-"],
    ["attempts", run.attempts.length ? whole(run.attempts.length) : "-"],
    ["began", run.started ? moment(run.started) : "-"],
    ["lasted", run.started && ended ? lasting(ended - run.started) : "-"],
  ]
  return [
    h("dl", { class: "cards" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    ...verdicts(run.verdicts),
    ...lines("What could not be read or is missing", run.problems),
    ...conflicts(run.conflicts),
    h(
      "div",
      { class: "columns" },
      named("What was trained", run.facts, (name) => !name.startsWith("code.") && !ABOVE.includes(name)),
      named("Config", run.config),
      named("Code", run.facts, (name) => name.startsWith("code."), (name) => name.slice(5)),
    ),
    ...health(run.health),
  ]
}

// A state and, of a run, how many findings it has: red for an error, amber for warnings.
export function badge(state, { level = "", findings = 0 } = {}) {
  const usual = GOOD.includes(state) ? "good" : ["no run.json", "unknown", "superseded"].includes(state) ? "plain" : "bad"
  const kind = level === "error" || usual === "bad" ? "bad" : level ? "warn" : usual
  return h("span", { class: `badge ${kind}` }, findings ? `${state}, ${counted(findings, "finding")}` : state)
}

function verdicts(found) {
  if (!found.length) return [h("p", { class: "quiet" }, "Nothing was found to be wrong.")]
  const rows = found.map((one, index) => ({
    attributes: {
      class: "link", tabindex: 0, "aria-label": `show verdict ${index + 1} in the heat maps`,
      onclick: () => show(index),
      onkeydown: (event) => event.key === "Enter" && show(index),
    },
    cells: [of_ranks(one), h("b", {}, one.cause), one.level, since(one), cost(one), one.evidence],
  }))
  const show = (index) => document.dispatchEvent(new CustomEvent("verdict", { detail: index }))
  return [h("h3", {}, `What was found: ${counted(found.length, "verdict")}`),
    h("div", { class: "scroll reports" }, table(["rank", "cause", "level", "steps", "cost", "evidence"], rows, { numbers: [4] }))]
}

const of_ranks = (one) => one.ranks?.length > 1 ? `ranks ${one.ranks.join(", ")}` : `rank ${one.rank}`

// The seconds of the run that a verdict cost.
const cost = (one) => one.lost_s >= 0.05 ? `${one.lost_s.toFixed(1)} s` : "-"

export const since = (one) => `${whole(one.since_step)} ${one.until_step < 0 ? "on" : `to ${whole(one.until_step)}`}`

function lines(title, texts) {
  return texts.length ? [h("h3", {}, title), h("ul", { class: "warning" }, texts.map((text) => h("li", {}, text)))] : []
}

function conflicts(found) {
  if (!found.length) return []
  const said = (values) => Object.entries(values).map(([rank, value]) => `rank ${rank}: ${JSON.stringify(value)}`).join(", ")
  return [h("h3", {}, "What the ranks disagree on"), table(["field", "values"], found.map((one) => [one.field, said(one.by_rank)]))]
}

function named(title, entries, chosen = () => true, shown = (name) => name) {
  const rows = Object.entries(entries).filter(([name]) => chosen(name))
  if (!rows.length) return null
  return h("div", {}, h("h3", {}, title), table(null, rows.map(([name, value]) => [shown(name), given(value)])))
}

function health(rows) {
  if (!rows.length) return []
  const bad = (row) => !GOOD.includes(row.state) || row.dropped > 0 || row.error
  const sorted = [...rows].sort((a, b) => Boolean(bad(b)) - Boolean(bad(a)))
  const left = rows.length - ROWS
  const cells = sorted.slice(0, ROWS).map((row) => [
    whole(row.rank), whole(row.attempt), badge(row.state), row.step < 0 ? "-" : whole(row.step),
    row.dropped < 0 ? "-" : whole(row.dropped), row.host, row.error,
  ])
  return [
    h("details", { open: sorted.some(bad) || rows.length <= 8 },
      h("summary", {}, `Ranks (${whole(rows.length)})`),
      h("div", { class: "scroll reports" }, table(["rank", "attempt", "state", "last step", "values dropped", "host", "error"], cells, { numbers: [0, 1, 3, 4] })),
      left > 0 ? h("p", { class: "quiet" }, `and ${whole(left)} more: distsummary status`) : null),
  ]
}
