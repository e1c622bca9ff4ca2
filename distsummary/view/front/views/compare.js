// The run next to others: what differs in config, code and data, and how the curves of each do.

import { lasting } from "../base/format"
import { groupColor, groupSaid } from "../charts/series"
import { badge, counted, given, h, number, table, whole } from "./dom.js"

// `show` shows the curves of a tag.
export function compare({ compare: found }, show) {
  if (!found) return null
  const { runs, groups, differing, within, equal, tags, not_in_all: notInAll, left_out: leftOut } = found
  const names = runs.map((run) => named(run.name, run.group))
  const head = (first, of) => [first, ...of.map((name) => name.cloneNode(true))]
  const titles = groups.map((group, index) => named(groupSaid(group), index))
  const rows = runs.map((run, index) => [names[index].cloneNode(true), badge(run.state, run), whole(run.ranks), run.steps ? `${whole(run.steps[0])} to ${whole(run.steps[1])}` : "-", short(run.verdicts.length ? [...run.verdicts.slice(0, 3), ...(run.verdicts.length > 3 ? [`${whole(run.verdicts.length - 3)} more`] : [])].join("; ") : "none"),
    run.source < 0 ? "merged run" : `rank ${run.source}`, run.path])
  const all = [h("div", { class: "scroll" }, table(["run", "state", "ranks", "steps", "verdicts", "its curves are of the", "path"], rows, { numbers: [2] }))]
  for (const run of runs) if (run.problems.length) all.push(h("h3", {}, `What could not be read or is missing in ${run.name}`), h("ul", { class: "warning" }, run.problems.slice(0, 5).map((text) => h("li", {}, text)),
    run.problems.length > 5 ? h("li", {}, `and ${whole(run.problems.length - 5)} more: distsummary show`) : null))
  all.push(h("h3", {}, "What differs in config, code and data"))
  if (differing.length) all.push(h("div", { class: "scroll facts" }, table(head("fact", titles), differing.map(([name, values]) => [name, ...values.map((each) => each.map(given).join(", "))]))))
  all.push(h("p", { class: "quiet" }, `${counted(equal, "fact")} ${equal === 1 ? "is" : "are"} equal.${within.length ? ` Within each group alike differ: ${within.join(", ")}.` : ""}`))
  all.push(h("h3", {}, "How the curves do"))
  const standings = tags.filter((one) => one.is_reported).flatMap((one) => one.standings.map((own, index) => own && row(one, own, titles[index], show)).filter(Boolean))
  if (standings.length) {
    all.push(h("p", { class: "quiet" }, "Reaches: the first step at which a curve, smoothed over 1 % of its points, is as good as the best value that all come to. Between: the mean difference to the first, over the steps of both. Apart: the step from which on, noise aside, it is farther from the first than three times its usual change from one step to the next. Choose a row to see its curves."),
      h("div", { class: "scroll" }, table(["curve", groups.length < runs.length ? "group" : "run", "last", "best", "at step", "reaches", "after", "between", "apart"], standings, { numbers: [2, 3, 4, 5, 6, 7, 8] })))
  } else all.push(h("p", { class: "quiet" }, "No curve is in the first run and in another."))
  if (notInAll.length) {
    all.push(h("h3", {}, "Scalars that not all of them have"),
      h("div", { class: "scroll" }, table(head("tag", names), notInAll.map(([tag, has]) => [short(tag), ...has.map((one) => (one ? "yes" : "-"))]))),
      leftOut ? h("p", { class: "quiet" }, `and ${whole(leftOut)} more`) : null)
  }
  return all.filter((element) => element != null)
}

function row({ tag, best, value }, own, title, choose) {
  const show = () => choose(tag)
  const part = own.parting
  return {
    attributes: { class: "link", tabindex: 0, "aria-label": `show the curves of ${tag}`, onclick: show, onkeydown: (event) => event.key === "Enter" && show() },
    cells: [short(tag), title.cloneNode(true), text(own.last), own.best == null ? "-" : text(own.best), own.best_step == null ? "-" : number(own.best_step, 6),
      own.reached_step == null ? "-" : h("span", { title: `${best === "max" ? "at least" : "at most"} ${text(value)}` }, stepOf(own.reached_step)),
      own.reached_s == null ? "-" : lasting(Math.max(0, own.reached_s)), part?.between == null ? "-" : number(part.between, 3), part ? stepOf(part.parts_at) : "-"],
  }
}

const short = (tag) => h("span", { class: "name", title: tag }, tag)
const text = (value) => (typeof value === "string" ? value : number(value, 6)) // "NaN"
const stepOf = (step) => (step == null ? "-" : `step ${whole(step)}`)

const named = (name, index, more = "") => h("span", { class: "key", title: name }, h("span", { class: "together" }, swatch(index), h("span", { class: "name" }, name)), more)

function swatch(index) {
  const element = h("i", { class: "swatch" })
  element.style.background = `var(${groupColor(index)})`
  return element
}
