// Pages of views that are made of elements at once: landscapes, media, the comparison with other runs.

import { useMemo } from "preact/hooks"
import { item, put } from "../base/hash"
import { data } from "../base/store"
import type { Line } from "../base/types"
import { AxisChoice } from "../charts/axis_choice"
import { Legend } from "../charts/card"
import { Plot } from "../charts/plot"
import { RUN_COLORS, type Drawn } from "../charts/series"
import { compare } from "../views/compare.js"
import { landscapes } from "../views/landscape.js"
import { media } from "../views/media.js"
import { Mounted } from "./mounted"

export const Landscape = () => <Mounted name="landscape" make={landscapes} needs={(page) => page.landscapes} />
export const Media = () => <Mounted name="media" make={media} needs={(page) => page.media} />

export const countOfMedia = (): number | null => {
  const kinds = Object.values(data.value.media ?? {}).filter(Boolean) as { tags: unknown[]; left_out: number }[]
  return kinds.length ? kinds.reduce((sum, one) => sum + one.tags.length + one.left_out, 0) : null
}

const FIRST = 6 // charts that are shown before a row is chosen

interface Compared { tag: string; lines: (Line | null)[]; differences: (Line | null)[]; standings: (Record<string, any> | null)[] }
interface ComparedRun { name: string; source: number; ranks: number }

function ComparedCard({ one, runs, unit }: { one: Compared; runs: ComparedRun[]; unit: string }) {
  const drawn = (line: Line | null, at: number): Drawn[] =>
    line ? [{ ...line, label: runs[at].name, color: RUN_COLORS[at % RUN_COLORS.length], width: 1.5, dash: at < RUN_COLORS.length ? undefined : [5, 3] }] : []
  const lines = useMemo(() => one.lines.flatMap(drawn), [one])
  const differences = useMemo(() => one.differences.flatMap((line, at) => drawn(line, at + 1)).filter((line) => line.steps.length > 1), [one])
  return (
    <figure class="card chart" data-tag={one.tag}>
      <figcaption><b class="tag" title={one.tag}>{one.tag}</b><Legend lines={lines} hasBand={false} ranks={1} /></figcaption>
      <Plot name={one.tag} unit={unit} lines={lines} height={200} isSmooth />
      {differences.length > 0 && <><p class="quiet">{`minus ${runs[0].name}`}</p><Plot name={`${one.tag} minus ${runs[0].name}`} unit={unit} lines={differences} height={110} isSmooth /></>}
    </figure>
  )
}

export function Compare() {
  const { runs, tags } = data.value.compare as { runs: ComparedRun[]; tags: Compared[] }
  const chosen = item.value ? tags.filter((one) => one.tag === item.value) : tags.slice(0, FIRST)
  return (
    <>
      <Mounted name="compare" make={(page) => compare(page, (tag: string) => put({ item: tag }))} needs={(page) => page.compare} />
      <div class="above"><span>{item.value ? <button class="link" onClick={() => put({ item: null })}>the first curves</button> : "the first curves; choose a row for its own"}</span><AxisChoice /></div>
      <div class="grid" id="compared">{chosen.map((one) => <ComparedCard key={one.tag} one={one} runs={runs} unit={data.value.curves.find((curve) => curve.tag === one.tag)?.unit ?? ""} />)}</div>
    </>
  )
}
