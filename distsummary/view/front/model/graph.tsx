// The recorded graph of the model: scopes are boxes that open, and a search opens those of what it finds.

import { useEffect, useMemo, useState } from "preact/hooks"
import { counted, whole } from "../base/format"
import { put } from "../base/hash"
import type { Graph } from "../base/types"
import { boxesOf, scopesOf, type Scope } from "./scopes"

const MOST = 400 // boxes that are drawn
const FOUND = 30 // nodes that a search opens

// The script that places the boxes: in a file it is there, a server is asked for it.
function useLayout() {
  const [, ready] = useState(0)
  useEffect(() => {
    if (globalThis.distsummaryLayout) return
    const script = document.createElement("script")
    script.src = "graph.js"
    script.onload = () => ready(1)
    document.head.append(script)
  }, [])
  return globalThis.distsummaryLayout
}

const parametersOf = (graph: Graph, box: Scope) => box.nodes.reduce((sum, at) => sum + graph.parameters[at], 0)

const LONGEST = 40 // characters of a name in a box
const shown = (text: string) => (text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text)
const widthOf = (title: string, op: string) => Math.max(60, 7.2 * Math.max(shown(title).length, shown(op).length) + 20)

export function GraphView({ graph, words }: { graph: Graph; words: string }) {
  const place = useLayout()
  const [open, setOpen] = useState(new Set<string>())
  const [chosen, choose] = useState<string | null>(null)
  const found = useMemo(() => (words ? graph.names.filter((name, at) => `${name} ${graph.ops[at]}`.toLowerCase().includes(words.toLowerCase())) : []), [graph, words])
  const all = useMemo(() => new Set([...open, ...found.slice(0, FOUND).flatMap(scopesOf)]), [open, found])
  const { boxes, edges } = useMemo(() => boxesOf(graph, all), [graph, all])
  const laid = useMemo(() => (place && boxes.length <= MOST ? place(boxes.map(({ id, title, op }) => ({ id, width: widthOf(title, op), height: op ? 40 : 32 })), edges) : null), [place, boxes, edges])
  const toggle = (id: string) => setOpen(all.has(id) ? new Set([...all].filter((one) => one !== id && !one.startsWith(`${id}/`))) : new Set([...all, id]))
  const box = boxes.find((one) => one.id === chosen)
  const isFound = new Set(found)
  const opened = [...all].filter((one) => graph.names.some((name) => name.startsWith(`${one}/`)))
  return (
    <>
      <div class="tools"><input type="search" id="filter" value={words} placeholder="search the graph  ( / )" aria-label="search the graph" onInput={(event) => put({ q: event.currentTarget.value })} />
        <span class="quiet">{`${counted(graph.names.length, "node")}${graph.left_out ? ` and ${whole(graph.left_out)} more that are not here` : ""}; click a box to open it${words ? `; ${counted(found.length, "node")} found` : ""}`}</span>
        {opened.length > 0 && <span class="chips">{opened.slice(0, 12).map((one) => <button key={one} class="chip" aria-pressed="true" aria-label={`close ${one}`} onClick={() => toggle(one)}>{`${one} ✕`}</button>)}</span>}</div>
      {!laid && <p class="card quiet">{boxes.length > MOST ? `${counted(boxes.length, "box")} are too many to draw; close some.` : "reading ..."}</p>}
      <div class="model-graph">
        {laid && <div class="card drawing" tabIndex={0}><svg width={laid.width} height={laid.height} viewBox={`0 0 ${laid.width} ${laid.height}`} role="group" aria-label="graph of the model">
          {laid.edges.map(({ points }, at) => <polyline key={at} class="edge" points={points.map(({ x, y }) => `${x},${y}`).join(" ")} />)}
          {boxes.map((one) => {
            const { x, y } = laid.boxes[one.id]
            const width = widthOf(one.title, one.op), height = one.op ? 40 : 32
            const act = () => (one.isClosed ? toggle(one.id) : choose(one.id))
            return <g key={one.id} class={`${one.isClosed ? "scope" : "node"} ${isFound.has(one.id) ? "found" : ""} ${one.id === chosen ? "chosen" : ""}`} transform={`translate(${x - width / 2} ${y - height / 2})`} role="button" tabIndex={0}
              aria-label={one.isClosed ? `open ${one.title.length > LONGEST ? shown(one.title) : one.id}, ${counted(one.nodes.length, "node")}` : `${one.title.length > LONGEST ? shown(one.title) : one.id} ${shown(one.op)}`} onClick={act} onKeyDown={(event) => event.key === "Enter" && act()} onPointerEnter={() => choose(one.id)}>
              <rect width={width} height={height} rx={one.isClosed ? 6 : 14} /><text x={width / 2} y={one.op ? 16 : 20}>{shown(one.title)}</text>{" "}{one.op && <text class="op" x={width / 2} y={31}>{shown(one.op)}</text>}</g>
          })}
        </svg></div>}
        {box && <aside class="card"><h2 class="tag">{box.id}</h2><table><tbody>
          {box.op && <tr><th scope="row">does</th><td>{box.op}</td></tr>}
          {box.isClosed && <tr><th scope="row">holds</th><td>{counted(box.nodes.length, "node")}</td></tr>}
          <tr><th scope="row">parameters</th><td>{whole(parametersOf(graph, box))}</td></tr>
          {!box.isClosed && <tr><th scope="row">gives</th><td>{graph.outputs[box.nodes[0]] || "-"}</td></tr>}
        </tbody></table></aside>}
      </div>
    </>
  )
}
