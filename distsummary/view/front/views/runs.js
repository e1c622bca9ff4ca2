// The runs below a directory: a table that is sorted by its heads, filtered, and worked by keys.

import { badge, counted, h, lasting, moment, number, whole } from "./dom.js"

const known = (value, said) => (value == null ? "-" : said(value))
const loss = (value) => (typeof value === "string" ? value : number(value, 4)) // NaN and infinities are texts

// Name, title, is it a number, the cell.
const COLUMNS = [
  ["name", "run", false, (row, title) => [h("a", { href: `?${new URLSearchParams({ run: row.name })}` }, row.name === "." ? title : row.name),
    row.note ? h("div", { class: "note" }, row.note) : null]],
  ["state", "state", false, (row) => badge(row.state, row)],
  ["ranks", "ranks", true, (row) => known(row.ranks, whole)],
  ["step", "step", true, (row) => known(row.step, whole)],
  ["loss", "loss", true, (row) => known(row.loss, loss)],
  ["started", "began", false, (row) => known(row.started, moment)],
  ["lasted_s", "lasted", true, (row) => known(row.lasted_s, lasting)],
]

export function runsTable({ directory, runs, note }, kept) {
  const state = (kept.state ??= { by: "started", isDown: true, words: "", chosen: [] })
  const title = directory.split("/").pop() || directory
  const said = h("p", { class: "quiet", "aria-live": "polite" })
  const body = h("tbody")
  const heads = COLUMNS.map(([name, text, isNumber]) => {
    const button = h("button", { class: "sort", onclick: () => sort(name) }, text)
    return h("th", isNumber ? { class: "number", scope: "col" } : { scope: "col" }, button)
  })
  const sort = (name) => {
    if (state.by === name) state.isDown = !state.isDown
    else Object.assign(state, { by: name, isDown: ["started", "step", "ranks"].includes(name) })
    arrange()
  }
  const link = h("a", { class: "button" })
  const choose = (name, isOn) => {
    state.chosen = [...state.chosen.filter((one) => one !== name), ...(isOn ? [name] : [])]
    updateLink()
  }
  const updateLink = () => {
    const [first, ...others] = state.chosen.filter((name) => runs.some((row) => row.name === name))
    link.hidden = !others.length
    link.href = `?${new URLSearchParams([["run", first ?? ""], ...others.map((name) => ["with", name])])}`
    link.textContent = `compare ${counted(others.length + 1, "run")}`
  }
  const choice = (name) => {
    const box = h("input", { type: "checkbox", "aria-label": `compare ${name}`, checked: state.chosen.includes(name), onchange: () => choose(name, box.checked) })
    return box
  }
  const arrange = () => {
    const words = state.words.toLowerCase()
    const found = runs.filter((row) => `${row.name} ${row.state} ${row.note}`.toLowerCase().includes(words))
    found.sort((a, b) => compared(a[state.by], b[state.by], state.isDown) || compared(a.name, b.name))
    body.replaceChildren(...found.map((row) => h("tr", { class: "link", onclick: (event) => event.target.closest("a, label") || event.currentTarget.querySelector("a").click() },
      runs.length > 1 ? h("td", {}, h("label", {}, choice(row.name))) : null,
      COLUMNS.map(([, , isNumber, cell]) => h("td", isNumber ? { class: "number" } : {}, ...[cell(row, title)].flat())))))
    COLUMNS.forEach(([name], index) => heads[index].setAttribute("aria-sort", name === state.by ? (state.isDown ? "descending" : "ascending") : "none"))
    said.textContent = found.length === runs.length ? counted(runs.length, "run") : `${whole(found.length)} of ${counted(runs.length, "run")}`
  }
  const filter = h("input", { type: "search", id: "filter", placeholder: "filter runs  ( / )", "aria-label": "filter runs", value: state.words,
    oninput: () => { state.words = filter.value; arrange() } })
  arrange()
  const move = (event) => {
    const links = [...body.querySelectorAll("a")]
    const at = links.indexOf(document.activeElement)
    const next = { ArrowDown: at + 1, ArrowUp: at < 0 ? links.length - 1 : at - 1, j: at + 1, k: at - 1 }[event.key]
    if (next == null || (event.target === filter && event.key.length === 1)) return
    event.preventDefault()
    if (next < 0) filter.focus()
    else links[Math.min(next, links.length - 1)]?.focus()
  }
  updateLink()
  if (!runs.length) return [h("p", {}, note)]
  return [h("div", { onkeydown: move }, h("div", { class: "tools" }, filter, said, link), h("div", { class: "wide-table" }, h("table", { class: "runs" }, h("thead", {}, h("tr", {}, runs.length > 1 ? h("th", { "aria-label": "compare" }) : null, heads)), body)))]
}

// By number or text; what is not known, and a loss that is not finite, come last.
function compared(a, b, isDown = false) {
  const isLast = (value, other) => value == null || (typeof value === "string" && typeof other === "number")
  if (isLast(a, b) || isLast(b, a)) return isLast(a, b) - isLast(b, a)
  const found = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b
  return isDown ? -found : found
}
