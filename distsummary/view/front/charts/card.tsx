// The card of a tag: its name and newest value in one line, a legend only of what differs, the chart, a menu.

import { useMemo, useState } from "preact/hooks"
import { counted, whole } from "../base/format"
import { axisKind, pins, putPins, ranks as chosenRanks } from "../base/hash"
import { culprit, data } from "../base/store"
import type { Curve } from "../base/types"
import { asCsv, asPng, asSvg, save } from "./export"
import { Plot } from "./plot"
import { chosenLines } from "./rank_lines"
import { isSame, linesOf, newest, type Drawn } from "./series"

export function Legend({ lines, hasBand, ranks }: { lines: Drawn[]; hasBand: boolean; ranks: number }) {
  if (lines.length + Number(hasBand) < 2) return null
  return (
    <span class="legend">
      {lines.filter((line) => line.label).map((line) => <span key={line.label}><i style={{ background: `var(${line.color})` }} />{line.label}</span>)}
      {hasBand && <span><i class="band" />{`range of ${whole(ranks)}`}</span>}
    </span>
  )
}

export function Menu({ name, items }: { name: string; items: [string, (figure: HTMLElement) => void][] }) {
  return (
    <details class="menu">
      <summary aria-label={`menu of ${name}`}>⋮</summary>
      <div>{items.map(([text, act]) => (
        <button key={text} onClick={(event) => { event.currentTarget.closest("details")!.open = false; act(event.currentTarget.closest("figure")!) }}>{text}</button>
      ))}</div>
    </details>
  )
}

export function CurveCard({ curve, height = 190, title }: { curve: Curve; height?: number; title?: string }) {
  const [outside, setOutside] = useState("")
  const chosen = chosenLines(curve, chosenRanks.value)
  const { lines, band } = useMemo(() => linesOf(curve, chosen, culprit.value), [curve, data.value, chosenRanks.value, ...chosen.map((one) => one.line)])
  const isPinned = pins.value.includes(curve.tag)
  const sources = { name: curve.tag, unit: curve.unit, lines, kind: axisKind.value }
  const notes = [
    curve.not_finite ? `${counted(curve.not_finite, "value")} NaN or infinite, first at step ${whole(curve.first_not_finite!)}` : "",
    ...(isSame(curve.band) && curve.ranks > 1 ? [] : chosen.map((one) => one.why ?? "")),
  ].filter(Boolean)
  return (
    <figure class="card chart" data-tag={curve.tag}>
      <figcaption>
        <b class="tag" title={curve.tag}>{title ?? curve.tag}</b>
        <span class="newest">{newest(curve)}</span>
        {outside && <span class="quiet" title="A few points are far from all others">{outside}</span>}
        <Legend lines={lines} hasBand={band != null} ranks={curve.ranks} />
        <Menu name={curve.tag} items={[
          [isPinned ? "unpin" : "pin", () => putPins(isPinned ? pins.value.filter((one) => one !== curve.tag) : [...pins.value, curve.tag])],
          ["save as PNG", (figure) => asPng(figure.querySelector("canvas")!, curve.tag)],
          ["save as SVG", () => save(`${curve.tag}.svg`, "image/svg+xml", asSvg(sources))],
          ["save as CSV", () => save(`${curve.tag}.csv`, "text/csv", asCsv(sources))],
        ]} />
      </figcaption>
      <Plot name={curve.tag} unit={curve.unit} lines={lines} band={band} ranks={curve.lines.length === curve.ranks ? curve.lines : undefined} height={height} firstBad={curve.first_not_finite} isSmooth onOutliers={setOutside} />
      {notes.length > 0 && <p class="note">{notes.join("; ")}</p>}
    </figure>
  )
}
