// Model: its graph, the norms of its parameters and their histograms; a parameter has a page of its own.

import { useMemo } from "preact/hooks"
import { item, put, search, tab } from "../base/hash"
import { data } from "../base/store"
import { AxisChoice } from "../charts/axis_choice"
import { Plot } from "../charts/plot"
import type { Drawn } from "../charts/series"
import { Mounted } from "../pages/mounted"
import { Removed } from "../pages/ported"
import { histograms } from "../views/histograms.js"
import { norms } from "../views/norms.js"
import { GraphView } from "./graph"

export const hasModel = (): boolean => Boolean(data.value.graph || data.value.norms || data.value.histograms)

const TABS = [["norms", "Norms"], ["histograms", "Histograms"], ["graph", "Graph"]] as const
const QUANTITIES: [string, string][] = [["gradient", "gradient norm"], ["weight", "weight norm"], ["update", "update norm"], ["ratio", "update by weight"]]

// The histogram tags of a parameter: of itself and of its gradient.
const histogramsOf = (name: string) => ({ tags: (data.value.histograms?.tags ?? []).filter((one: { tag: string }) => one.tag === name || one.tag === `${name}/auto` || one.tag === `zz_gradient/${name}`), left_out: 0 })

function Parameter({ name }: { name: string }) {
  const norm = data.value.norms
  const row = norm ? norm.labels.indexOf(name) : -1
  const charts = useMemo(() => (norm && row >= 0 ? QUANTITIES.flatMap(([quantity, title]) => {
    const map = norm.maps[quantity]
    if (!map) return []
    const columns = norm.first_steps.length
    const lines: Drawn[] = [{ steps: norm.first_steps, values: map.values.subarray(row * columns, (row + 1) * columns), label: "", color: "--blue", width: 1.6 }]
    return [{ title, lines }]
  }) : []), [norm, row])
  const found = histogramsOf(name)
  const others: string[] = (norm?.labels ?? []).filter((one: string) => one !== name && name.includes(".") && one.startsWith(name.slice(0, name.lastIndexOf(".") + 1)))
  return (
    <>
      <p><button class="link" onClick={() => put({ item: null })}>← all parameters</button></p>
      <h2 class="tag">{name}</h2>
      {others.length > 0 && <p class="quiet">in the same module: {others.slice(0, 12).map((one) => <button key={one} class="link" onClick={() => put({ item: one })}>{one}</button>)}</p>}
      <div class="above"><span class="quiet">{norm && row >= 0 && norm.sizes[row] > 1 ? `the highest of ${norm.sizes[row]} parameters` : ""}</span><AxisChoice /></div>
      <div class="grid">{charts.map(({ title, lines }) => <figure key={title} class="card chart"><figcaption><b class="tag">{title}</b></figcaption><Plot name={`${title} of ${name}`} unit="" lines={lines} height={180} /></figure>)}</div>
      {found.tags.length > 0 ? <Mounted key={name} name="histograms" make={(page, kept) => histograms({ ...page, histograms: histogramsOf(name) }, kept, undefined)} needs={(page) => page.histograms} />
        : <p class="card quiet">No histogram of it is in this page.</p>}
    </>
  )
}

export function Model() {
  const there = TABS.filter(([name]) => data.value[name])
  if (item.value) return <Parameter name={item.value} />
  const chosen = there.find(([name]) => name === tab.value)?.[0] ?? there[0][0]
  const open = (name: string) => put({ item: name, q: null })
  return (
    <>
      {there.length > 1 && <div class="tools"><span class="chips" role="group" aria-label="what is shown of the model">{there.map(([name, title]) => <button key={name} class="chip" aria-pressed={name === chosen} onClick={() => put({ tab: name })}>{title.toLowerCase()}</button>)}</span></div>}
      {chosen === "norms" && <Mounted name="norms" make={(page, kept) => norms(page, kept, open)} needs={(page) => [page.norms, page.marks.attempts]} />}
      {chosen === "histograms" && <Removed />}
      {chosen === "histograms" && <Mounted name="histograms" make={(page, kept) => histograms(page, kept, open)} needs={(page) => [page.histograms, page.marks.attempts]} />}
      {chosen === "graph" && <GraphView graph={data.value.graph!} words={search.value} />}
    </>
  )
}
