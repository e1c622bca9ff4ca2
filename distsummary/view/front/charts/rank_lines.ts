// The lines of chosen ranks: those in the page; of a served page, the others are asked for.

import { signal } from "@preact/signals"
import { askRank, isServed } from "../base/source"
import { data } from "../base/store"
import type { Curve } from "../base/types"
import type { Chosen } from "./series"

const asked = new Map<string, Chosen>() // of a tag and a rank; without a line and a reason, the answer is on its way
const came = signal(0)

export function chosenLines(curve: Curve, ranks: number[]): Chosen[] {
  came.value // drawn again when an answer comes
  return ranks.filter((rank) => data.value.overview.ranks.includes(rank)).map((rank) => {
    const line = curve.lines.find((one) => one.rank === rank)
    if (line) return { rank, line }
    if (!isServed) return { rank, line: null, why: `rank ${rank} has no line of its own here: distsummary report --rank ${rank}` }
    const key = `${data.value.overview.made} ${rank} ${curve.tag}`
    if (!asked.has(key)) {
      asked.set(key, { rank, line: null })
      askRank(curve.tag, rank)
        .then((found) => asked.set(key, { rank, line: found }), (error: Error) => asked.set(key, { rank, line: null, why: `rank ${rank}: ${error.message}` }))
        .then(() => came.value++)
    }
    return asked.get(key)!
  })
}
