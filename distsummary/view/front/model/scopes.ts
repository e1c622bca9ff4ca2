// A graph as boxes of scopes: what is inside of a closed scope is one box. Pure, without a page.

import type { Graph } from "../base/types"

export interface Scope { id: string; title: string; op: string; nodes: number[]; isClosed: boolean }

// The boxes and edges of a graph in which the scopes of `open` are open.
export function boxesOf(graph: Graph, open: Set<string>): { boxes: Scope[]; edges: [string, string][] } {
  const boxes = new Map<string, Scope>()
  const of: string[] = []
  graph.names.forEach((name, at) => {
    const parts = name.split("/")
    let depth = 1
    while (depth < parts.length && open.has(parts.slice(0, depth).join("/"))) depth++
    const isNode = depth === parts.length
    const id = isNode ? name : parts.slice(0, depth).join("/")
    of.push(id)
    const box = boxes.get(id)
    if (box) box.nodes.push(at)
    else boxes.set(id, { id, title: parts[depth - 1], op: isNode ? graph.ops[at] : "", nodes: [at], isClosed: !isNode })
  })
  const edges = new Map<string, [string, string]>()
  graph.sources.forEach((source, at) => {
    const [from, to] = [of[source], of[graph.targets[at]]]
    if (from !== to) edges.set(`${from}\n${to}`, [from, to])
  })
  return { boxes: [...boxes.values()], edges: [...edges.values()] }
}

// The scopes that must be open so that a node is in sight.
export const scopesOf = (name: string): string[] => name.split("/").slice(0, -1).map((_, at, parts) => parts.slice(0, at + 1).join("/"))
