// Pages of views that are made of elements at once: landscapes, media, the comparison with other runs.

import { useMemo } from "preact/hooks"
import { item, put } from "../base/hash"
import { groupedBy, isServed } from "../base/source"
import { axis, data } from "../base/store"
import { AxisChoice } from "../charts/axis_choice"
import { Plot } from "../charts/plot"
import { groupColor, groupLine, groupSaid, type GroupLine, type RunGroup } from "../charts/series"
import { isSetting, short } from "../runs/columns"
import { compare } from "../views/compare.js"
import { landscapes } from "../views/landscape.js"
import { media } from "../views/media.js"
import { Mounted } from "./mounted"

export const Landscape = () => <Mounted name="landscape" make={landscapes} needs={(page) => page.landscapes} />
export const Removed = () => (data.value.overview.removed ? <p class="card quiet">{data.value.overview.removed}</p> : null)
export const Media = () => <><Removed /><Mounted name="media" make={media} needs={(page) => page.media} /></>

export const countOfMedia = (): number | null => {
  const kinds = Object.values(data.value.media ?? {}).filter(Boolean) as { tags: unknown[]; left_out: number }[]
  return kinds.length ? kinds.reduce((sum, one) => sum + one.tags.length + one.left_out, 0) : null
}

const FIRST = 6 // charts that are shown before a row is chosen

interface Compared { tag: string; lines: (GroupLine | null)[]; differences: (GroupLine | null)[] }

function ComparedCard({ one, groups, unit }: { one: Compared; groups: RunGroup[]; unit: string }) {
  const drawn = (line: GroupLine | null, at: number) => groupLine(line, groups[at], at, axis.value)
  const lines = useMemo(() => one.lines.flatMap(drawn), [one, axis.value])
  const differences = useMemo(() => one.differences.flatMap((line, at) => drawn(line, at + 1)).filter((line) => line.steps.length > 1), [one, axis.value])
  return (
    <figure class="card chart" data-tag={one.tag}>
      <figcaption><b class="tag" title={one.tag}>{one.tag}</b></figcaption>
      <Plot name={one.tag} unit={unit} lines={lines} height={200} isSmooth />
      {differences.length > 0 && <><p class="quiet">{`minus ${groups[0].name}`}</p><Plot name={`${one.tag} minus ${groups[0].name}`} unit={unit} lines={differences} height={110} isSmooth /></>}
    </figure>
  )
}

export function Compare() {
  const { groups, tags, differing, within } = data.value.compare as { groups: RunGroup[]; tags: Compared[]; differing: [string, unknown[]][]; within: string[] }
  const by = groupedBy()
  const settings = [...new Set([...by, ...[...differing.map(([name]) => name), ...within].filter(isSetting)])]
  const regroup = (column: string): void => {
    const kept = [...new URLSearchParams(location.search)].filter(([name]) => name !== "by")
    location.search = `?${new URLSearchParams([...kept, ...(column ? [["by", column]] : [])])}`
  }
  const chosen = item.value ? tags.filter((one) => one.tag === item.value) : tags.slice(0, FIRST)
  return (
    <>
      <Mounted name="compare" make={(page) => compare(page, (tag: string) => put({ item: tag }))} needs={(page) => page.compare} />
      <div class="above"><span>{item.value ? <button class="link" onClick={() => put({ item: null })}>the first curves</button> : "the first curves; choose a row for its own"}</span>
        {isServed && settings.length > 0 && <label class="choose-column"><span>group by</span><select value={by.length > 1 ? "several" : by[0] ?? ""} onChange={(event) => regroup(event.currentTarget.value)}>
          <option value="">-</option>{by.length > 1 && <option value="several">{by.map(short).join(", ")}</option>}{settings.map((name) => <option key={name} value={name}>{name}</option>)}
        </select></label>}
        <AxisChoice /></div>
      <div id="compared"><p class="legend">{groups.map((group, at) => <span key={group.name}><i style={{ background: `var(${groupColor(at)})` }} />{groupSaid(group)}</span>)}</p>
        {groups.some((one) => one.runs > 1) && <p class="quiet">A line of several runs is their mean, with a band from the lowest to the highest, at the steps that all of them have.</p>}
        {axis.value.kind === "epoch" && groups.some((one) => !one.epochs) && <p class="quiet">{`without epochs, and so without a curve: ${groups.filter((one) => !one.epochs).map((one) => one.name).join(", ")}`}</p>}
        <div class="grid">{chosen.map((one) => <ComparedCard key={one.tag} one={one} groups={groups} unit={data.value.curves.find((curve) => curve.tag === one.tag)?.unit ?? ""} />)}</div></div>
    </>
  )
}
