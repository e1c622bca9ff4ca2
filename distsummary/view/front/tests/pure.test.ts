// The pure code of the pages: numbers as texts, axes, which lines a chart has, the tree of tags, the boxes of a graph.

import { describe, expect, test } from "vitest"
import { between, makeAxis } from "../base/axis"
import { firstAdvice, given, lasting, milliseconds, number, ranges, tickDistance, ticksSaid, visible, withUnit } from "../base/format"
import type { Band, Curve, Graph } from "../base/types"
import { groupLine, isSame, linesOf, nearest, newest, smoothed, suitsLog, withoutOutliers } from "../charts/series"
import { chosenTags, treeOf } from "../metrics/tree"
import { boxesOf, scopesOf } from "../model/scopes"

describe("texts", () => {
  test.each([[0.1 + 0.2, "0.3"], [1234567, "1,234,600"], [1.5e-7, "1.5e-7"], [NaN, "NaN"], [-Infinity, "-infinite"], [null, "-"], [0, "0"]])("%s is %s", (value, said) => {
    expect(number(value)).toBe(said)
  })
  test("settings are as they were given", () => {
    expect([20260131, Math.fround(0.05), 1.5e-7, null].map(given)).toEqual(["20260131", "0.05", "1.5e-7", "-"])
  })
  test("the first advice of a cause's page is one line", () => {
    const guide = "# hang\n\n## What to do\n\n1. At the line of the rank, look.\n2. Start at `a.py`,\n   then look.\n3. End it.\n"
    expect(firstAdvice(guide, "it is at b.py:12 in f")).toBe("At the line of the rank, look.")
    expect(firstAdvice(guide, "it takes 12 ms")).toBe("Start at `a.py`, then look.")
    expect(firstAdvice("# odd\n", "")).toBe("")
  })
  test("times are in the unit that fits", () => {
    expect([0.3, 75, 311, 299.7, 9000].map(lasting)).toEqual(["0.3 s", "75 s", "5 min 11 s", "5 min", "2.5 h"])
    expect([12.345, 1500].map(milliseconds)).toEqual(["12.3 ms", "1.5 s"])
    expect(withUnit(1500, "ms")).toBe("1.5 s")
    expect(withUnit(12, "%")).toBe("12 %")
  })
  test("a recorded text has no character that does anything", () => {
    expect(visible("\x1b[31m\x07\n\u202eé\x9b")).toBe("\\x1b[31m\\x07\n\\u202eé\\x9b")
  })
  test("ranks in a row are a range", () => expect(ranges([0, 2, 3, 4, 9, 10])).toBe("0, 2 to 4, 9, 10"))
  test("ticks are short and differ", () => {
    expect(ticksSaid([0.0001, 0.0002])).toEqual(["0.0001", "0.0002"])
    expect(ticksSaid([150000, 200000])).toEqual(["150,000", "200,000"])
    expect(ticksSaid([10000001, 10000002])).toEqual(["1.0000001e7", "1.0000002e7"])
    expect(tickDistance(0, 10, 5)).toBe(2)
  })
})

describe("axes", () => {
  const marks = { attempts: [], evaluations: new Int32Array(), checkpoints: new Int32Array(), epochs: null,
    times: { steps: Int32Array.from([0, 100, 200]), seconds: Float64Array.from([50, 60, 55]) } }
  test("a clock that was set back does not turn the axis round", () => {
    const axis = makeAxis(marks, "relative")
    expect([0, 50, 100, 150, 200].map(axis.to)).toEqual([0, 5, 10, 10, 10])
    expect(axis.back(5)).toBe(50)
  })
  test("what the data do not allow is the axis of steps", () => {
    expect(makeAxis({ ...marks, times: null }, "wall").kinds).toEqual(["step"])
    const back = { steps: Int32Array.from([0, 1]), seconds: Float64Array.from([9, 3]) }
    expect(makeAxis({ ...marks, times: back, epochs: { steps: back.steps, values: Float64Array.from([1, 1]) } }, "epoch").kinds).toEqual(["step"])
    expect(makeAxis(marks, "epoch").kind).toBe("step")
    expect(between([1], [7], 3)).toBe(7)
  })
})

const line = (...values: number[]) => ({ steps: Int32Array.from(values.keys()), values: Float32Array.from(values) })
const bandOf = (low: number[], high: number[]) => ({ steps: Int32Array.from(low.keys()), low: Float32Array.from(low), high: Float32Array.from(high) }) as unknown as Band
const curve = (more: Partial<Curve>): Curve => ({ tag: "a", unit: "", ranks: 3, points: 0, steps: 0, median: line(1, 2), band: bandOf([0, 1], [2, 3]), lines: [], merged: null, across: "mean", not_finite: 0, first_not_finite: null, ...more })

describe("lines", () => {
  test("a group of runs is one line with a band, named by what they have in common", () => {
    const group = { ...line(1, 2), low: Float32Array.from([0, 1]), high: Float32Array.from([3, 4]), seconds: Float64Array.from([0, 10]) }
    const [byStep, byTime] = [{ kind: "step", back: (place: number) => place }, { kind: "relative", back: (seconds: number) => 2 * seconds }]
    expect(groupLine(group, { name: "lr 0.1", runs: 5, epochs: null }, 1, byStep)).toMatchObject([{ label: "lr 0.1 (5 runs)", color: "--vermilion", low: group.low, steps: group.steps }])
    expect(groupLine(group, { name: "a", runs: 1, epochs: null }, 0, byTime)).toMatchObject([{ label: "a", steps: Float64Array.from([0, 20]) }])
    expect(groupLine(null, { name: "a", runs: 1, epochs: null }, 0, byStep)).toEqual([])
  })
  test("on an axis of epochs, a run with other epochs than the first one is placed by its own", () => {
    const epochs = (each: number) => ({ steps: Int32Array.from([0, 4 * each]), values: Float64Array.from([0, 4]) })
    const axis = makeAxis({ attempts: [], evaluations: new Int32Array(), checkpoints: new Int32Array(), times: null, epochs: epochs(100) }, "epoch")
    const line = { steps: Int32Array.from([0, 10, 20]), values: Float32Array.from([3, 2, 1]), seconds: new Float64Array(3) }
    const placed = (own: ReturnType<typeof epochs> | null) => groupLine(line, { name: "a", runs: 1, epochs: own }, 1, axis)
    expect(Array.from(placed(epochs(10))[0].steps, axis.to)).toEqual([0, 1, 2])
    expect(Array.from(placed(epochs(100))[0].steps)).toEqual([0, 10, 20])
    expect(placed(null)).toEqual([])
  })
  test("ranks that are alike are one line without a band", () => {
    expect(isSame(bandOf([1, NaN], [1, NaN]))).toBe(true)
    expect(linesOf(curve({ band: bandOf([1, 2], [1, 2]) }), [], null)).toMatchObject({ band: null, lines: [{ label: "all ranks" }] })
  })
  test("chosen ranks lie above the median, the one that is blamed in its colour", () => {
    const { lines } = linesOf(curve({}), [{ rank: 2, line: line(1, 1) }, { rank: 0, line: line(2, 2) }], 2)
    expect(lines.map((one) => [one.label, one.color])).toEqual([["median", "--blue"], ["rank 2", "--vermilion"], ["rank 0", "--orange"]])
  })
  test("the merged run stands for the ranks, and the median is drawn where it differs", () => {
    const labels = (more: Partial<Curve>) => linesOf(curve(more), [], null).lines.map((one) => one.label)
    expect(labels({ merged: line(1, 2) })).toEqual(["mean"])
    expect(labels({ merged: line(1, 3), across: "max" })).toEqual(["max", "median"])
    expect(labels({ merged: line(4, 8), across: "sum", band: bandOf([1, 2], [1, 2]) })).toEqual(["sum", "each rank"])
    expect([newest(curve({ merged: line(4, 8), across: "sum", unit: "tokens" })), newest(curve({ merged: line(1, 3) })), newest(curve({}))]).toEqual(["8 tokens", "3", "2"])
  })
  test("smoothing pulls nothing to 0 and passes over what is not finite", () => {
    expect(smoothed([4, NaN, 4], 0.9).map((one) => Math.round(one))).toEqual([4, NaN, 4])
  })
  test("a loss that falls far suits a log axis, an accuracy does not", () => {
    const falling = Array.from({ length: 100 }, (_, at) => Math.exp(-at / 15))
    expect(suitsLog(falling, "loss")).toBe(true)
    expect(suitsLog(falling.map((one) => 1 - one / 2), "accuracy")).toBe(false)
    expect(suitsLog([...falling, 0], "loss")).toBe(false)
  })
  test("a step that compiles is outside of the axis", () => {
    const [low, high] = withoutOutliers([9000, ...Array.from({ length: 200 }, (_, at) => 10 + (at % 5))])!
    expect([low, high]).toEqual([10, 15])
    expect(withoutOutliers([1, 2, 3])).toBe(null)
  })
  test("the nearest point", () => expect([-5, 4, 6, 99].map((step) => nearest([0, 5, 10], step))).toEqual([0, 1, 1, 2]))
})

describe("tags", () => {
  const tags = ["loss", "train/acc", "zz_perf/step_ms", "eval/acc"]
  test("the user's come first, those of distsummary last", () => {
    expect(treeOf(tags).map((one) => [one.prefix, one.tags.length, one.isOwn])).toEqual([["", 1, false], ["train/", 1, false], ["eval/", 1, false], ["zz_perf/", 1, true]])
  })
  test.each([["", "", ["loss", "train/acc", "eval/acc"]], ["acc", "", ["train/acc", "eval/acc"]], ["EVAL acc", "zz_perf/", ["eval/acc"]], ["", "zz_perf/", ["zz_perf/step_ms"]], ["", "/", ["loss"]], ["", "*", tags]])("search %s in group %s", (words, group, found) => {
    expect(chosenTags(tags, words, group)).toEqual(found)
  })
  test("a run with tags of distsummary alone shows them", () => expect(chosenTags(["zz_a"], "", "")).toEqual(["zz_a"]))
})

describe("graph", () => {
  const graph: Graph = { names: ["in", "a/b/x", "a/b/y", "a/z"], ops: ["Input", "X", "Y", "Z"], outputs: ["", "", "", ""], parameters: [0, 1, 2, 3], sources: Uint8Array.from([0, 1, 2]), targets: Uint8Array.from([1, 2, 3]), left_out: 0 }
  test("a closed scope is one box, an open one shows what is inside", () => {
    expect(boxesOf(graph, new Set()).boxes.map((one) => one.id)).toEqual(["in", "a"])
    const { boxes, edges } = boxesOf(graph, new Set(["a"]))
    expect(boxes.map((one) => [one.id, one.isClosed])).toEqual([["in", false], ["a/b", true], ["a/z", false]])
    expect(edges).toEqual([["in", "a/b"], ["a/b", "a/z"]])
    expect(scopesOf("a/b/x")).toEqual(["a", "a/b"])
  })
})
