// System: when the ranks ran, how many recorded each step, and what machine, GPU and process used.

import { data } from "../base/store"
import { AxisChoice } from "../charts/axis_choice"
import { CurveCard } from "../charts/card"
import { timeline } from "../views/timeline.js"
import { Mounted } from "./mounted"

export const SYSTEM = "zz_system/"
export const systemTags = (): string[] => data.value.tags.filter((tag) => tag.startsWith(SYSTEM))

export function System() {
  const curves = data.value.curves.filter((one) => one.tag.startsWith(SYSTEM))
  return (
    <>
      <Mounted name="timeline" make={timeline} needs={(page) => [page.timeline, page.marks.attempts]} />
      {curves.length > 0 && <div class="above"><span /><AxisChoice /></div>}
      <div class="grid">{curves.map((curve) => <CurveCard key={curve.tag} curve={curve} title={curve.tag.slice(SYSTEM.length)} />)}</div>
      {!curves.length && <p class="card quiet">No use of the machine was recorded: ds.init(system_metrics=True) records it.</p>}
    </>
  )
}
