// The table of many runs: which columns it shows, how its rows are sorted and grouped, what a setting accounts for.

import { describe, expect, test } from "vitest"
import { alike, allRows, compared, differs, explained, firstSort, grouped, isNumeric, leading, readSort, said, scaleOf, spreadOf, usual, valueOf, type Listing } from "../runs/columns"

const seeds = [0, 1, 2, 0, 1, 2]
const list: Listing = {
  directory: "/runs", note: "", spark: [], pending: 0, problems: [], most: 9,
  columns: {
    name: ["a", "b", "c", "d", "e", "f"], path: ["a", "b", "c", "d", "e", "f"], state: Array(6).fill("finished"), started: [1, 2, 3, 4, 5, 6],
    duration_s: Array(6).fill(75), goodput: Array(6).fill(0.5), id: ["1", "2", "3", "4", "5", "6"],
    "config.lr": [0.1, 0.1, 0.1, 0.01, 0.01, 0.01], "config.seed": seeds, "config.width": Array(6).fill(256), "config.opt": ["x", "y", "x", "y", "x", "y"],
    "train/loss": [1, 2, "NaN", 4, 5, null], "train/loss:best": [1, 2, 3, 4, 5, null], "eval/acc": [0.9, 0.91, 0.92, 0.5, 0.51, 0.52], "eval/acc:best": [0.9, 0.91, 0.92, 0.5, 0.51, 0.52],
  },
  better: { "train/loss": "min", "train/loss:best": "min", "eval/acc": "max", "eval/acc:best": "max" },
}

describe("columns", () => {
  test("settings and metrics by which the runs differ are shown", () => {
    expect(leading(list)).toEqual({ loss: "train/loss", metric: "eval/acc:best" })
    expect(usual(list)).toEqual(["state", "config.lr", "config.seed", "config.opt", "train/loss", "eval/acc:best", "goodput", "duration_s"])
    expect([differs(list.columns["config.width"], allRows(list)), isNumeric(list.columns["train/loss"]), isNumeric(list.columns["config.opt"])]).toEqual([false, true, false])
  })
  test("cells have their units", () => {
    expect([said("duration_s", 75), said("goodput", 0.5), said("size_bytes", 2e9), said("config.lr", 0.001), said("tags", ["a", "b"]), said("x", null), said("x", "NaN")]).toEqual(["75 s", "50 %", "2 GB", "0.001", "a, b", "-", "NaN"])
  })
})

describe("rows", () => {
  test("the best or the largest is first, what is not there last", () => {
    expect([firstSort("eval/acc", list), firstSort("train/loss", list), firstSort("started", list)].map((one) => one.isDown)).toEqual([true, false, true])
    expect([readSort("-train/loss", list), readSort("toString", list)]).toEqual([{ column: "train/loss", isDown: true }, { column: "started", isDown: true }])
    const sorted = (isDown: boolean) => allRows(list).sort((a, b) => compared(list.columns["train/loss"][a], list.columns["train/loss"][b], isDown))
    expect([sorted(false), sorted(true)]).toEqual([[0, 1, 3, 4, 2, 5], [4, 3, 1, 0, 2, 5]])
  })
  test("runs that differ in the seed alone are one group", () => {
    const groups = grouped(list, allRows(list), ["config.lr"])
    expect(groups.map((one) => [one.key, one.rows])).toEqual([["lr 0.1", [0, 1, 2]], ["lr 0.01", [3, 4, 5]]])
    expect(spreadOf(list.columns["train/loss"], groups[0].rows)).toEqual({ mean: 1.5, low: 1, high: 2, count: 2 })
    expect(spreadOf(list.columns["config.opt"], [0])).toBeNull()
  })
  test("a group costs what its runs cost together", () => {
    const costs = { ...list, columns: { ...list.columns, rank_s: [1, 2, 3, null, null, null] } }
    expect([valueOf(costs, "rank_s", [0, 1, 2]), valueOf(costs, "rank_s", [3]), valueOf(costs, "train/loss", [0, 1]), valueOf(costs, "config.opt", [1])]).toEqual([6, null, 1.5, "y"])
  })
  test("a filter finds the runs of a group", () => {
    const odd = { ...list, columns: { "config.lr": [0.1], "or": ["it's"], "a b": [null], tags: [["x", "y"]], causes: [[]], "train/loss": ["NaN"] } }
    expect(alike(odd, 0, ["config.lr", "or", "a b"])).toBe("config.lr == 0.1 and 'or' == 'it\\'s' and 'a b' == none")
    expect(alike(odd, 0, ["tags", "causes", "train/loss"], "a or b ")).toBe("(a or b) and 'x' in tags and 'y' in tags and not causes and train/loss == nan")
  })
  test("a setting accounts for what its values have in common", () => {
    const found = new Map(explained(list, allRows(list), "eval/acc"))
    expect(found.get("config.lr")).toBeGreaterThan(0.99)
    expect(found.get("config.opt")).toBeLessThan(0.2)
    expect([found.has("config.seed"), found.has("config.width"), explained(list, [0, 1], "eval/acc")]).toEqual([false, false, []])
  })
})

describe("axes", () => {
  test("numbers over decades are on a logarithmic one, texts are evenly apart", () => {
    const log = scaleOf([0.001, 0.01, 0.1, null], [0, 1, 2, 3])!
    expect([log.isLog, log.at(0.001), log.at(0.01)!.toFixed(3), log.at(0.1), log.at(null)]).toEqual([true, 0, "0.500", 1, null])
    const texts = scaleOf(["b", "a", "c"], [0, 1, 2])!
    expect(["a", "b", "c"].map(texts.at)).toEqual([0, 0.5, 1])
    expect([scaleOf([null], [0]), scaleOf([2, 2], [0, 1])!.at(2)]).toEqual([null, 0.5])
  })
})
