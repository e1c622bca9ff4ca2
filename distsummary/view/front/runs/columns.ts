// The columns of the table of runs: which are shown, how rows are sorted and grouped. Pure, without a page.

import { given, lasting, moment, number, percent, whole } from "../base/format"

export type Cell = string | number | boolean | string[] | null
export interface Listing {
  directory: string; note: string; columns: Record<string, Cell[]>; better: Record<string, string>; spark: (number | string | null)[][]
  pending: number; problems: string[]; most: number
}
export interface Group { key: string; rows: number[] }
export interface Sort { column: string; isDown: boolean }

const SUMS = ["rank_s", "size_bytes", "lost_s"] // what a group costs is what its runs cost together
const FALLING = ["started", "duration_s", "rank_s", "goodput", "size_bytes", "step", "ranks", "attempts", "lost_s"] // the largest first
const SETTINGS = 5 // that are shown at first
export const OFF = new Set<Cell>(["NaN", "Infinity", "-Infinity"]) // numbers that JSON does not have

const PLAIN = /^(?!(and|or|not|in|true|false|none|nan|inf)$)[a-z_][\w./:@%#*-]*$/i // a name that a filter has without quotes

export const quoted = (text: string): string => `'${text.replace(/['\\]/g, "\\$&")}'`
export const short = (name: string): string => name.replace(/^config\./, "")
export const has = (list: Listing, name: string): boolean => Object.hasOwn(list.columns, name)
export const isSum = (name: string): boolean => SUMS.includes(name)
export const isSetting = (name: string): boolean => name.startsWith("config.")
export const isMetric = (list: Listing, name: string): boolean => Object.keys(list.columns).indexOf(name) > Object.keys(list.columns).indexOf("id") && !isSetting(name)

const isThere = (value: Cell): boolean => value != null && value !== "" && !(Array.isArray(value) && !value.length)
export const isNumeric = (column: Cell[]): boolean => column.some((one) => typeof one === "number") && column.every((one) => !isThere(one) || typeof one === "number" || OFF.has(one))
export const allRows = (list: Listing): number[] => (list.columns.path ?? []).map((_, row) => row)
export const differs = (column: Cell[], rows: number[]): boolean => rows.some((row) => String(column[row]) !== String(column[rows[0]]))

// The loss and the best of the first other metric that has one.
export function leading(list: Listing): { loss: string | null; metric: string | null } {
  const metrics = Object.keys(list.columns).filter((name) => isMetric(list, name) && !/:(best|best_step|nan_step)$/.test(name) && list.better[name])
  const loss = metrics.find((name) => /(^|[/_])loss([/_]|$)/.test(name)) ?? null
  const metric = metrics.find((name) => name !== loss && !/loss/.test(name)) ?? metrics.find((name) => name !== loss)
  return { loss, metric: metric && has(list, `${metric}:best`) ? `${metric}:best` : metric ?? null }
}

// What is shown before anyone chooses: the settings and metrics by which the runs differ.
export function usual(list: Listing): string[] {
  const rows = allRows(list)
  const { loss, metric } = leading(list)
  const settings = Object.keys(list.columns).filter((name) => isSetting(name) && differs(list.columns[name], rows)).slice(0, SETTINGS)
  return ["state", ...(differs(list.columns.group ?? [], rows) ? ["group"] : []), ...settings, ...(loss ? [loss] : []), ...(metric ? [metric] : []), "goodput", "duration_s", ...(metric || loss ? [] : ["started"])]
}

// "-loss" is the loss from its largest value down. Without a column that is there, the newest run is first.
export function readSort(text: string, list: Listing): Sort {
  const isDown = text.startsWith("-"), column = text.replace(/^-/, "")
  return has(list, column) ? { column, isDown } : { column: "started", isDown: true }
}
export const firstSort = (column: string, list: Listing): Sort => ({ column, isDown: FALLING.includes(column) || list.better[column] === "max" })
export const writtenSort = ({ column, isDown }: Sort): string => `${isDown ? "-" : ""}${column}`

// What is not there comes last, before it numbers that are not finite.
export function compared(a: Cell, b: Cell, isDown: boolean): number {
  const rank = (value: Cell): number => (!isThere(value) ? 2 : OFF.has(value) ? 1 : 0)
  if (rank(a) || rank(b)) return rank(a) - rank(b)
  const found = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })
  return isDown ? -found : found
}

// Rows that have equal values in some columns, as groups; the order is that of the first row of each.
export function grouped(list: Listing, rows: number[], by: string[]): Group[] {
  const groups = new Map<string, Group>()
  for (const row of rows) {
    const key = by.map((name) => `${short(name)} ${said(name, list.columns[name]?.[row] ?? null)}`).join(", ")
    if (!groups.has(key)) groups.set(key, { key, rows: [] })
    groups.get(key)!.rows.push(row)
  }
  return [...groups.values()]
}

// A filter for the runs that have the values of a row in some columns, and for which another one holds.
export function alike(list: Listing, row: number, by: string[], other = ""): string {
  const parts = by.map((name) => {
    const value = list.columns[name][row], column = PLAIN.test(name) ? name : quoted(name)
    if (Array.isArray(value)) return value.map((one) => `${quoted(one)} in ${name}`).join(" and ") || `not ${name}`
    return `${column} == ${value == null ? "none" : value === "NaN" ? "nan" : typeof value === "string" ? quoted(value) : value}`
  })
  return [...(other.trim() ? [`(${other.trim()})`] : []), ...parts].join(" and ")
}

export interface Spread { mean: number; low: number; high: number; count: number }
export function spreadOf(column: Cell[], rows: number[]): Spread | null {
  const values = rows.map((row) => column[row]).filter((one): one is number => typeof one === "number")
  if (!values.length) return null
  return { mean: values.reduce((sum, one) => sum + one, 0) / values.length, low: Math.min(...values), high: Math.max(...values), count: values.length }
}

// What stands for a group in a column: the sum of costs, the mean of other numbers, the value of the first run.
export function valueOf(list: Listing, name: string, rows: number[]): Cell {
  const column = list.columns[name], spread = isNumeric(column) ? spreadOf(column, rows) : null
  return isNumeric(column) ? (spread && (isSum(name) ? spread.mean * spread.count : spread.mean)) : column[rows[0]]
}

// Which share of a metric's variance over the runs the values of each setting account for, the largest first: the
// variance between the means of runs with equal values. Settings with a value of their own in most runs say nothing.
export function explained(list: Listing, rows: number[], metric: string): [string, number][] {
  const values = list.columns[metric]
  const there = rows.filter((row) => typeof values?.[row] === "number")
  const all = spreadOf(values ?? [], there)
  if (!all || there.length < 6) return []
  const total = there.reduce((sum, row) => sum + ((values[row] as number) - all.mean) ** 2, 0)
  return Object.keys(list.columns).filter((name) => isSetting(name) && total > 0).flatMap((name): [string, number][] => {
    const groups = new Map<string, number[]>()
    for (const row of there) groups.set(String(list.columns[name][row]), [...(groups.get(String(list.columns[name][row])) ?? []), row])
    if (groups.size < 2 || groups.size > there.length / 3) return []
    const between = [...groups.values()].reduce((sum, members) => sum + members.length * (spreadOf(values, members)!.mean - all.mean) ** 2, 0)
    // Of values that a setting has nothing to do with, k groups account for (k - 1) / (n - 1) by chance.
    const chance = (groups.size - 1) / (there.length - 1)
    return [[name, Math.max(0, (between / total - chance) / (1 - chance))]]
  }).sort((a, b) => b[1] - a[1])
}

// A cell as people read it.
export function said(name: string, value: Cell): string {
  if (!isThere(value)) return "-"
  if (Array.isArray(value)) return value.join(", ")
  if (typeof value !== "number") return String(value)
  if (name === "started") return moment(value).slice(0, 16)
  if (name === "goodput") return percent(value)
  if (name.endsWith("_s") && !isSetting(name)) return lasting(value)
  if (name === "size_bytes") return value >= 1e9 ? `${number(value / 1e9, 3)} GB` : `${number(value / 1e6, 3)} MB`
  if (/:(best|nan)_step$/.test(name) || ["step", "ranks", "attempts"].includes(name)) return whole(value)
  return isSetting(name) ? given(value) : number(value, 4)
}

// Where values stand on an axis from 0 to 1: by size, by logarithm if they span two decades, texts evenly.
export function scaleOf(column: Cell[], rows: number[]): { at: (value: Cell) => number | null; low: string; high: string; isLog: boolean } | null {
  const values = rows.map((row) => column[row]).filter((one) => isThere(one) && !OFF.has(one))
  if (!values.length) return null
  if (values.every((one) => typeof one === "number")) {
    const low = Math.min(...(values as number[])), high = Math.max(...(values as number[]))
    const isLog = low > 0 && high / low >= 50
    const bend = (value: number): number => (isLog ? Math.log(value) : value)
    const at = (value: Cell): number | null => (typeof value !== "number" ? null : high > low ? (bend(value) - bend(low)) / (bend(high) - bend(low)) : 0.5)
    return { at, low: number(low, 3), high: number(high, 3), isLog }
  }
  const texts = [...new Set(values.map(String))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }))
  return { at: (value) => (isThere(value) && !OFF.has(value) ? (texts.length > 1 ? texts.indexOf(String(value)) / (texts.length - 1) : 0.5) : null), low: texts[0], high: texts.at(-1)!, isLog: false }
}
