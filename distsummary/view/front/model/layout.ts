// Where the nodes and edges of a graph lie; in a script of its own, which only a page with a graph has.

import { graphlib, layout } from "@dagrejs/dagre"

export interface Box { id: string; width: number; height: number }
export interface Placed { boxes: Record<string, { x: number; y: number }>; edges: { points: { x: number; y: number }[] }[]; width: number; height: number }

function place(boxes: Box[], edges: [string, string][]): Placed {
  const graph = new graphlib.Graph()
  graph.setGraph({ rankdir: "TB", nodesep: 16, ranksep: 28, marginx: 8, marginy: 8 })
  graph.setDefaultEdgeLabel(() => ({}))
  for (const { id, width, height } of boxes) graph.setNode(id, { width, height })
  for (const [from, to] of edges) graph.setEdge(from, to)
  layout(graph)
  const { width = 0, height = 0 } = graph.graph() as { width?: number; height?: number }
  return {
    boxes: Object.fromEntries(boxes.map(({ id }) => [id, graph.node(id) as { x: number; y: number }])),
    edges: graph.edges().map((edge) => ({ points: (graph.edge(edge) as { points: { x: number; y: number }[] }).points })),
    width, height,
  }
}

declare global { var distsummaryLayout: typeof place | undefined }
globalThis.distsummaryLayout = place
