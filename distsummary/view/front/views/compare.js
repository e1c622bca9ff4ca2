// The run next to others: what differs in config, code and data, and where the curves part.

import { RUN_COLORS } from "../charts/series"
import { badge, counted, given, h, number, table, whole } from "./dom.js"

// `show` shows the curves of a tag.
export function compare({ compare: found }, show) {
  if (!found) return null
  const { runs, differing, equal, tags, apart, not_in_all: notInAll, left_out: leftOut } = found
  const names = runs.map((run, index) => named(run.name, index))
  const head = (...first) => [...first, ...names.map((name) => name.cloneNode(true))]
  const rows = runs.map((run, index) => [names[index].cloneNode(true), badge(run.state, run), whole(run.ranks), run.steps ? `${whole(run.steps[0])} to ${whole(run.steps[1])}` : "-", short(run.verdicts.length ? [...run.verdicts.slice(0, 3), ...(run.verdicts.length > 3 ? [`${whole(run.verdicts.length - 3)} more`] : [])].join("; ") : "none"),
    run.source < 0 ? "merged run" : `rank ${run.source}`, run.path])
  const all = [h("div", { class: "scroll" }, table(["run", "state", "ranks", "steps", "verdicts", "its curves are of the", "path"], rows, { numbers: [2] }))]
  for (const run of runs) if (run.problems.length) all.push(h("h3", {}, `What could not be read or is missing in ${run.name}`), h("ul", { class: "warning" }, run.problems.slice(0, 5).map((text) => h("li", {}, text)),
    run.problems.length > 5 ? h("li", {}, `and ${whole(run.problems.length - 5)} more: distsummary show`) : null))
  all.push(h("h3", {}, "What differs in config, code and data"))
  if (differing.length) all.push(h("div", { class: "scroll facts" }, table(head("fact"), differing.map(([name, values]) => [name, ...values.map(given)]))))
  all.push(h("p", { class: "quiet" }, `${counted(equal, "fact")} ${equal === 1 ? "is" : "are"} equal.`))
  all.push(h("h3", {}, "Where the curves part"))
  const several = runs.length > 2
  const partings = tags.flatMap(({ tag, partings }) => partings.map((one, index) => one?.is_reported && row(tag, one, runs[index + 1].name, index + 1, several, show)).filter(Boolean))
  if (partings.length) {
    all.push(h("p", { class: "quiet" }, `${apart[0].toUpperCase()}${apart.slice(1)}. Choose a row to see its curves.`),
      h("div", { class: "scroll" }, table(["curve", ...(several ? ["run"] : []), "differ from", "apart from", "steps of both", `last: ${runs[0].name}`, several ? "other run" : runs[1].name], partings,
        { numbers: [1, 2, 3, 4, 5].map((column) => column + (several ? 1 : 0)) })))
  } else all.push(h("p", { class: "quiet" }, "No curve is in both runs."))
  if (notInAll.length) {
    all.push(h("h3", {}, "Scalars that not all of them have"),
      h("div", { class: "scroll" }, table(head("tag"), notInAll.map(([tag, has]) => [short(tag), ...has.map((one) => (one ? "yes" : "-"))]))),
      leftOut ? h("p", { class: "quiet" }, `and ${whole(leftOut)} more`) : null)
  }
  return all.filter((element) => element != null)
}

function row(tag, one, name, index, several, choose) {
  const show = () => choose(tag)
  const last = one.last ?? [null, null]
  return {
    attributes: { class: "link", tabindex: 0, "aria-label": `show the curves of ${tag}`, onclick: show, onkeydown: (event) => event.key === "Enter" && show() },
    cells: [short(tag), ...(several ? [named(name, index)] : []), one.common && one.first_difference == null ? "same" : stepOf(one.first_difference), stepOf(one.parts_at), whole(one.common), text(last[0]), text(last[1])],
  }
}

const short = (tag) => h("span", { class: "name", title: tag }, tag)
const text = (value) => (typeof value === "string" ? value : number(value, 6)) // "NaN"
const stepOf = (step) => (step == null ? "-" : `step ${whole(step)}`)

// How another run parts from the first, in a few words.
export function parting(one) {
  if (!one) return "has no such curve"
  if (!one.common) return "no step in common"
  if (one.parts_at != null) return `apart from step ${whole(one.parts_at)}`
  return one.first_difference == null ? "the same" : `differs from step ${whole(one.first_difference)}, not apart`
}

const named = (name, index, more = "") => h("span", { class: "key", title: name }, h("span", { class: "together" }, swatch(index), h("span", { class: "name" }, name)), more)

function swatch(index) {
  const element = h("i", { class: "swatch" })
  element.style.background = `var(${RUN_COLORS[index % RUN_COLORS.length]})`
  return element
}
