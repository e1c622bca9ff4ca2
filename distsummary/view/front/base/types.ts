// The data of a page, as view/page.py makes them.

export type Numbers = Float32Array | Float64Array | Int32Array | Uint8Array | Uint16Array | Uint32Array
export interface Line { steps: Numbers; values: Numbers }
export interface RankLine extends Line { rank: number }
export interface Band { steps: Numbers; low: Numbers; high: Numbers; low_ranks: Numbers; high_ranks: Numbers; low_steps: Numbers; high_steps: Numbers }
export interface Curve {
  tag: string; unit: string; ranks: number; points: number; steps: number
  median: Line | null; band: Band | null; lines: RankLine[]; merged: Line | null; across: string
  not_finite: number; first_not_finite: number | null
}
export interface Verdict {
  rank: number; ranks: number[] | null; cause: string; level: string; since_step: number; until_step: number
  intervals: [number, number | null][] | null; evidence: string; sentence: string; lost_s: number
}
export interface Overview {
  made: number; name: string; path: string; state: string; level: string; findings: number; ranks: number[]; world_size: number
  steps: [number, number] | null; lasted_s: number | null; started: number | null
  attempts: Row[]; health: Row[]; facts: Record<string, unknown>; config: Record<string, unknown>; counts: Record<string, number>
  verdicts: Verdict[]; conflicts: { field: string; by_rank: Record<string, unknown> }[]; problems: string[]; removed: string
}
export type Row = Record<string, any>
export interface Figure { tag: string; unit: string; last: number | null; step: number; ranks: number; of: string; bad_since: number | null; best?: number | null; best_step?: number | null }
export interface Answer {
  badge: { text: string; kind: "good" | "warn" | "bad" | "plain" }
  head: string; detail: string; earlier: string; guides: Record<string, string>
  loss: Figure | null; metric: Figure | null; time: { tag: string; median: number; most: number; steps: number } | null
  proof: string | null; wait: string | null
}
export interface RankMap {
  title: string; tag: string; unit: string; is_of_step: boolean; ranks: Numbers; others: Numbers; first_steps: Numbers; last_step: number
  rows: number; columns: number; percent: Int32Array; far: Int32Array; far_steps: Numbers; far_rank: Numbers | null
  middle: Float32Array; bad: Uint8Array | null
}
export interface Marks {
  attempts: { attempt: number; first_step: number; last_step: number }[]
  times: { steps: Numbers; seconds: Float64Array } | null
  epochs: { steps: Numbers; values: Float64Array } | null
  evaluations: Numbers; checkpoints: Numbers
}
export interface Anatomy { steps: Numbers; ranks: Numbers; phases: Record<string, Float32Array> }
export interface Bill { wall_s: number; goodput: number | null; parts: { part: string; rank: number | null; cause: string | null; seconds: number }[]; what_if?: { rank: number; cause: string; seconds: number }[] }
export interface Graph { names: string[]; ops: string[]; outputs: string[]; parameters: number[]; sources: Numbers; targets: Numbers; left_out: number }
export interface Page {
  overview: Overview; answer: Answer; cost: Bill | null; tags: string[]; curves: Curve[]; maps: RankMap[]; anatomy: Anatomy | null
  marks: Marks; timeline: { bars: Row[]; counts: { steps: Numbers; ranks: Numbers } | null }
  landscapes: unknown; norms: Row | null; graph: Graph | null; compare: Row | null; histograms: Row | null; media: Row | null
}
