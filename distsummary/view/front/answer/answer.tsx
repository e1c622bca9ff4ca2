// The first screen: the sentence, three numbers and the bill, and the proof on one axis.

import { useMemo } from "preact/hooks"
import { counted, withUnit } from "../base/format"
import { go, linkTo } from "../base/hash"
import { AxisChoice } from "../charts/axis_choice"
import { CurveCard, Legend } from "../charts/card"
import { Heat, Scale } from "../charts/heat"
import { marksSaid } from "../charts/marks"
import { Plot } from "../charts/plot"
import { linesOf, nearest, ofRun, type Drawn } from "../charts/series"
import { culprit, data, hovered } from "../base/store"
import type { Curve, Line } from "../base/types"
import { proof } from "../ranks/proof"
import { Bill } from "./bill"
import { Tiles } from "./numbers"
import { Sentence } from "./sentence"

const ROWS = 6 // of the heat map on the first screen

const curveOf = (tag: string | null | undefined): Curve | undefined => data.value.curves.find((one) => one.tag === tag)

// The step time of the ranks together and of the one that takes longest by itself.
function TimeCard({ curve }: { curve: Curve }) {
  const { band, lines } = useMemo(() => {
    const found = linesOf({ ...curve, merged: null }, [], culprit.value)
    const slow = curve.lines.find((one) => one.rank === culprit.value)
    const highest: Line | null = found.band ? { steps: found.band.steps, values: found.band.high } : null
    const more: Drawn[] = slow && curve.ranks > 1 ? [{ ...slow, label: `rank ${slow.rank}`, color: "--vermilion", width: 1.5 }]
      : highest ? [{ ...highest, label: "longest rank", color: "--grey-line", width: 1 }] : []
    return { band: found.band, lines: [...more, ...found.lines] }
  }, [curve])
  const name = curve.tag.endsWith("own_ms") ? "own time of a step" : "step time"
  return (
    <figure class="card chart" data-tag={curve.tag}>
      <figcaption><b class="tag">{name}</b><Legend lines={lines} hasBand={false} ranks={curve.ranks} /></figcaption>
      <Plot name={name} unit={curve.unit} lines={lines} band={lines.length > 1 ? null : band} height={190} isFromZero />
    </figure>
  )
}

// What the curves say at the crosshair, in one line above them.
function Readout({ curves }: { curves: Curve[] }) {
  const step = hovered.value
  if (step == null) return <span class="quiet">{[matchMedia("(pointer: coarse)").matches ? "touch a chart to read it" : "point at a chart to read it, drag to zoom", ...marksSaid()].join(" · ")}</span>
  const values = curves.flatMap((curve) => {
    const { line } = ofRun(curve)
    const at = line ? nearest(line.steps, step) : -1
    return at < 0 ? [] : [`${curve.tag.split("/").pop()} ${withUnit(line!.values[at], curve.unit, 4)}`]
  })
  return <span>{`step ${step.toLocaleString("en-US")} · `}<b>{values.join(" · ")}</b></span>
}

export function Answer() {
  const { answer, maps, overview } = data.value
  const loss = curveOf(answer.loss?.tag)
  const metric = answer.metric?.tag !== answer.loss?.tag ? curveOf(answer.metric?.tag) : undefined
  const time = curveOf(answer.proof) ?? curveOf(answer.time?.tag)
  const map = maps.find((one) => one.tag === proof())
  const curves = [loss, metric, time].filter((one) => one != null)
  // A run without loss, steps or evaluation shows what it has.
  const others = data.value.curves.filter((one) => !curves.includes(one)).slice(0, Math.max(0, 3 - curves.length))
  return (
    <>
      <Sentence />
      <div class={`figures ${data.value.cost ? "" : "alone"}`}><Tiles /><Bill /></div>
      {curves.length + others.length > 0 && <div class="above"><Readout curves={[...curves, ...others]} /><AxisChoice /></div>}
      <div class="three">
        {loss && <CurveCard curve={loss} />}
        {metric && <CurveCard curve={metric} />}
        {time && <TimeCard curve={time} />}
        {others.map((one) => <CurveCard key={one.tag} curve={one} />)}
      </div>
      {map && <figure class="card">
        <figcaption><b class="tag">{`${map.title.toLowerCase()} of each rank against ${overview.ranks.length === 2 ? "the other" : "the median"}`}</b><Scale map={map} most={ROWS} />
          <a class="end" href={linkTo("ranks")}>{map.rows > ROWS ? `all ${counted(overview.ranks.length, "rank")}` : "step by step"}</a></figcaption>
        <Heat map={map} most={ROWS} onChoose={(step, rank) => go("ranks", { step: `${step}`, ...(rank == null ? {} : { rank: `${rank}` }) })} />
      </figure>}
      {!curves.length && !others.length && <p class="card quiet">No number was recorded; what else there is has pages of its own.</p>}
    </>
  )
}
