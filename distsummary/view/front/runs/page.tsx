// The page of many runs: a filter, pictures of all of them, and a table that is sorted, grouped and compared.

import { computed, effect, signal } from "@preact/signals"
import { useEffect, useRef, useState } from "preact/hooks"
import { counted, lasting, whole } from "../base/format"
import { isPaused } from "../base/follow"
import { list as listIn, put, text as textIn } from "../base/hash"
import { ask, send } from "../base/source"
import { changeTheme, said as saidOfServer } from "../base/store"
import { alike, allRows, compared, differs, firstSort, grouped, has, isMetric, isNumeric, isSetting, isSum, leading, quoted, readSort, said, short, spreadOf, usual, valueOf, writtenSort, type Cell, type Listing } from "./columns"
import { Explained, Parallel, Scatter, Spark } from "./plots"

const AT_ONCE = 100 // rows
const AXES = 7
const WAIT_MS = 150 // after a key

export const listing = signal<Listing>(null as unknown as Listing) // set before anything is drawn
export const canEdit = signal(false)
const where = textIn("q"), sorting = textIn("sort"), columnsChosen = listIn("cols"), groupBy = textIn("by"), picture = textIn("plot"), across = textIn("px"), up = textIn("py")
const chosenPaths = listIn("runs")
const found = signal<Set<string> | null>(null) // the paths for which the filter holds; null: all
const wrong = signal("") // about the filter
const ODD = "level or is_healthy == false" // a filter for the runs with something wrong
const TAGS = 12 // that are offered above the table
const BUT = "\u0002" // before a setting: groups by all others that differ; alone: by all but the seed

const keep = (name: string, values: string[]): void => put({ [name]: values.join("\u0001") })
const chosen = computed(() => new Set(chosenPaths.value))
const columns = computed(() => (columnsChosen.value.length ? columnsChosen.value.filter((name) => has(listing.value, name)) : usual(listing.value)))
const sort = computed(() => readSort(sorting.value, listing.value))
const rows = computed(() => {
  const { columns, better: _ } = listing.value
  const { column, isDown } = sort.value
  const shown = allRows(listing.value).filter((row) => !found.value || found.value.has(columns.path[row] as string))
  return shown.sort((a, b) => compared(columns[column][a], columns[column][b], isDown) || compared(columns.path[a], columns.path[b], false))
})
const differing = computed(() => Object.keys(listing.value.columns).filter((name) => isSetting(name) && differs(listing.value.columns[name], allRows(listing.value))))
const groupColumns = computed(() => {
  if (!groupBy.value.startsWith(BUT)) return has(listing.value, groupBy.value) ? [groupBy.value] : []
  const left = groupBy.value.slice(BUT.length)
  return differing.value.filter((name) => (left ? name !== left : !/seed/i.test(name)))
})

// Asks which runs the filter holds for: a moment after it was typed, and whenever the runs are others. An answer counts
// until a later question is answered, so that runs which change more often than the server answers hold nothing up.
export function followFilter(): void {
  let asked = 0, answered = 0
  const sought = signal(where.value)
  effect(() => {
    const text = where.value
    const waiting = setTimeout(() => { sought.value = text }, WAIT_MS)
    return () => clearTimeout(waiting)
  })
  effect(() => {
    const text = sought.value, number = ++asked
    if (!listing.value) return
    const show = (paths: Set<string> | null, reason: string): void => {
      if (number < answered || text !== sought.value) return
      answered = number
      if (!reason) found.value = paths
      wrong.value = reason
    }
    if (!text.trim()) show(null, "")
    else ask<string[]>("filter", { where: text }).then(({ data }) => show(new Set(data), ""), (error: Error) => show(null, error.message))
  })
}

function Columns() {
  const [words, setWords] = useState("")
  const names = Object.keys(listing.value.columns).filter((name) => name !== "name" && name.toLowerCase().includes(words.toLowerCase()))
  const parts: [string, string[]][] = [["run", names.filter((name) => !isSetting(name) && !isMetric(listing.value, name))], ["settings", names.filter(isSetting)], ["metrics", names.filter((name) => isMetric(listing.value, name))]]
  const toggle = (name: string, isOn: boolean): void => keep("cols", isOn ? [...columns.value, name] : columns.value.filter((one) => one !== name))
  return (
    <details class="drop">
      <summary role="button">Columns</summary>
      <div>
        <div class="tools"><input type="search" placeholder="find a column" aria-label="find a column" value={words} onInput={(event) => setWords(event.currentTarget.value)} /><button class="link" onClick={() => put({ cols: null })}>usual ones</button></div>
        {parts.filter(([, members]) => members.length).map(([part, members]) => <fieldset key={part}><legend>{part}</legend>{members.map((name) => <label key={name}><input type="checkbox" checked={columns.value.includes(name)} onChange={(event) => toggle(name, event.currentTarget.checked)} />{name}</label>)}</fieldset>)}
      </div>
    </details>
  )
}

function Choice({ label, value, names, first, last = [], pick }: { label: string; value: string; names: string[]; first: [string, string][]; last?: [string, string][]; pick: (name: string) => void }) {
  return (
    <label class="choose-column"><span>{label}</span>
      <select value={value} onChange={(event) => pick(event.currentTarget.value)}>
        {first.map(([name, text]) => <option key={name} value={name}>{text}</option>)}
        {names.map((name) => <option key={name} value={name}>{name}</option>)}
        {last.map(([name, text]) => <option key={name} value={name}>{text}</option>)}
      </select>
    </label>
  )
}

function Summary() {
  const { columns, pending } = listing.value
  const all = allRows(listing.value).length, shown = rows.value
  const running = shown.filter((row) => columns.state[row] === "running").length, odd = shown.filter((row) => columns.level[row] || columns.is_healthy[row] === false).length
  const spent = Number((shown.length && valueOf(listing.value, "rank_s", shown)) || 0)
  const began = shown.flatMap((row) => (typeof columns.started[row] === "number" ? [columns.started[row] as number] : []))
  const ended = shown.map((row) => Number(columns.started[row] ?? 0) + Number(columns.duration_s[row] ?? 0))
  const cost = spent ? `${lasting(spent)} of rank time${began.length > 1 ? ` within ${lasting(Math.max(...ended) - Math.min(...began))}` : ""}` : ""
  const parts = [shown.length === all ? counted(all, "run") : `${whole(shown.length)} of ${counted(all, "run")}`, odd ? <button class="link" title="only these" onClick={() => put({ q: ODD })}>{`${whole(odd)} with findings`}</button> : "", running ? `${whole(running)} running` : "", cost, pending ? `reading ${counted(pending, "more run")}` : ""]
  return <span class="quiet" id="summary" role="status">{parts.filter(Boolean).map((part, at) => <>{at ? " · " : ""}{part}</>)}</span>
}

function Pictures() {
  const list = listing.value
  const { loss, metric } = leading(list)
  const settings = differing.value.filter((name) => differs(list.columns[name], rows.value))
  const names = [...settings.slice(0, AXES - 2), ...(loss ? [loss] : []), ...(metric ? [metric] : [])]
  const plotted = Object.keys(list.columns).filter((name) => isNumeric(list.columns[name]) || isSetting(name))
  const x = has(list, across.value) ? across.value : settings[0] ?? "duration_s", y = has(list, up.value) ? up.value : metric ?? loss ?? "goodput"
  const open = (path: string): void => { location.search = `?${new URLSearchParams({ run: path })}` }
  const kind = picture.value || "parallel"
  if (allRows(list).length < 3) return null
  const shown = { list, rows: rows.value, chosen: chosen.value, open }
  return (
    <section class="card" aria-label="pictures of the runs">
      <div class="above">
        <span class="chips" role="group" aria-label="picture">{[["parallel", "parallel coordinates"], ["scatter", "scatter"], ["none", "no picture"]].map(([name, text]) => <button key={name} class="choice" aria-pressed={kind === name} onClick={() => put({ plot: name === "parallel" ? null : name })}>{text}</button>)}</span>
        {kind === "scatter" && <span class="chips"><Choice label="up" value={y} names={plotted} first={[]} pick={(name) => put({ py: name })} /><Choice label="across" value={x} names={plotted} first={[]} pick={(name) => put({ px: name })} /></span>}
      </div>
      {kind === "parallel" && <Parallel {...shown} names={names} best={metric ?? loss} />}
      {kind === "scatter" && <Scatter {...shown} x={x} y={y} />}
      {kind !== "none" && (metric ?? loss) && <Explained list={list} rows={rows.value} metric={kind === "scatter" && isMetric(list, y) ? y : (metric ?? loss)!} />}
    </section>
  )
}

// A head breaks after its dots and slashes, so that long names do not make wide columns.
const broken = (name: string): preact.ComponentChildren => name.split(/(?<=[./])/).flatMap((part, at) => (at ? [<wbr key={at} />, part] : [part]))

const color = (state: string, level: string): string => (level === "error" || ["failed", "lost", "unreadable", "interrupted"].includes(state) ? "bad" : level ? "warn" : state === "finished" ? "good" : state === "running" ? "live" : "plain")

function CellOf({ name, row }: { name: string; row: number }) {
  const { columns, better } = listing.value
  const value = columns[name][row]
  if (name === "state") {
    const finding = String(columns.finding[row] ?? "").replace(/^\d+ findings?: /, ""), cost = Number(columns.lost_s[row] ?? 0)
    return <td><span class={`dot ${color(String(value), String(columns.level[row] ?? ""))}`} />{String(value)}{finding && <div class="finding" title={finding}>{cost >= 0.05 && !finding.includes(lasting(cost)) ? `${finding} (${lasting(cost)})` : finding}</div>}</td>
  }
  if (name === leading(listing.value).loss) return <td class="number with-spark"><Spark values={listing.value.spark[row]} />{said(name, value)}</td>
  return <td class={isNumeric(columns[name]) ? `number${better[name] && name === sort.value.column ? " strong" : ""}` : "words"} title={typeof value === "string" ? value : undefined}>{said(name, value)}</td>
}

function NameOf({ row, open }: { row: number; open: () => void }) {
  const { columns } = listing.value
  const path = columns.path[row] as string, name = columns.name[row] as string
  const isTwice = columns.name.indexOf(name) !== columns.name.lastIndexOf(name)
  return (
    <th scope="row">
      <a href={`?${new URLSearchParams({ run: path })}`}>{name}</a>
      {canEdit.value && <button class="link edit" aria-label={`edit ${name}`} onClick={open}>✎</button>}
      {((columns.tags[row] as string[] | null) ?? []).map((tag) => <button key={tag} class="label" title={`only runs with ${tag}`} onClick={() => put({ q: `${quoted(tag)} in tags` })}>{tag}</button>)}
      {(isTwice || name !== path.split("/").at(-1)) && <div class="quiet path">{path}</div>}
      {columns.notes[row] && <div class="quiet path" title={String(columns.notes[row])}>{String(columns.notes[row])}</div>}
    </th>
  )
}

function Edit({ row, close }: { row: number; close: () => void }) {
  const { columns } = listing.value
  const [error, setError] = useState("")
  const before = (columns.tags[row] as string[] | null) ?? []
  const [fields, setFields] = useState({ name: String(columns.name[row]), group: String(columns.group[row] ?? ""), tags: before.join(", "), notes: String(columns.notes[row] ?? "") })
  const save = (event: Event): void => {
    event.preventDefault()
    const tags = fields.tags.split(",").map((one) => one.trim()).filter(Boolean)
    const changes: Record<string, unknown> = { add: tags.filter((one) => !before.includes(one)), remove: before.filter((one) => !tags.includes(one)) }
    for (const name of ["name", "group", "notes"] as const) if (fields[name] !== String(columns[name][row] ?? "")) changes[name] = fields[name]
    send("labels", { run: columns.path[row] as string }, changes).then(() => ask<Listing>("runs")).then(({ data }) => { listing.value = data!; close() }, (refused: Error) => setError(refused.message))
  }
  return (
    <tr class="editing"><td colSpan={columns_.value}><form onSubmit={save}>
      {(["name", "group", "tags", "notes"] as const).map((name) => <label key={name}>{name === "tags" ? "tags, with commas" : name}<input type="text" value={fields[name]} onInput={(event) => setFields({ ...fields, [name]: event.currentTarget.value })} /></label>)}
      <span class="chips"><button type="submit">save</button><button type="button" onClick={close}>cancel</button></span>{error && <p class="said" role="alert">{error}</p>}
    </form></td></tr>
  )
}
const columns_ = computed(() => columns.value.length + 2)

function Heads() {
  const press = (name: string): void => {
    const now = sort.value
    put({ sort: writtenSort(now.column === name ? { column: name, isDown: !now.isDown } : firstSort(name, listing.value)) })
  }
  return <>{["name", ...columns.value].map((name) => <th key={name} scope="col" class={name !== "name" && isNumeric(listing.value.columns[name]) ? "number" : ""} aria-sort={sort.value.column === name ? (sort.value.isDown ? "descending" : "ascending") : "none"}><button class="sort" onClick={() => press(name)}>{broken(name)}</button></th>)}</>
}

function Rows() {
  const [shown, setShown] = useState(AT_ONCE)
  const [edited, edit] = useState<string | null>(null)
  const end = useRef<HTMLParagraphElement>(null)
  const { columns: values } = listing.value
  useEffect(() => {
    const seen = new IntersectionObserver((entries) => entries.some((one) => one.isIntersecting) && setShown((before) => before + AT_ONCE), { rootMargin: "400px" })
    if (end.current) seen.observe(end.current)
    return () => seen.disconnect()
  }, [shown < rows.value.length])
  const choose = (path: string, isOn: boolean): void => keep("runs", isOn ? [...chosenPaths.value, path] : chosenPaths.value.filter((one) => one !== path))
  const move = (event: KeyboardEvent): void => {
    const links = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("th a")]
    const at = links.indexOf(document.activeElement as HTMLElement)
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, j: at + 1, k: at - 1 }[event.key]
    if (next == null || at < 0) return
    event.preventDefault()
    if (next < 0) document.getElementById("filter")?.focus()
    else links[Math.min(next, links.length - 1)].focus()
  }
  return (
    <>
      <div class="wide-table" onKeyDown={move}><table class="runs">
        <thead><tr><th><span class="unseen">compare</span></th><Heads /></tr></thead>
        <tbody>{rows.value.slice(0, shown).map((row) => {
          const path = values.path[row] as string
          return [
            <tr key={path} class={chosen.value.has(path) ? "picked" : ""}>
              <td><input type="checkbox" aria-label={`compare ${values.name[row]}`} checked={chosen.value.has(path)} onChange={(event) => choose(path, event.currentTarget.checked)} /></td>
              <NameOf row={row} open={() => edit(edited === path ? null : path)} />
              {columns.value.map((name) => <CellOf key={name} name={name} row={row} />)}
            </tr>,
            edited === path && <Edit key={`${path} edit`} row={row} close={() => edit(null)} />,
          ]
        })}</tbody>
      </table></div>
      {shown < rows.value.length && <p ref={end} class="quiet">{`${whole(rows.value.length - shown)} more`}</p>}
      {!rows.value.length && <p class="quiet">No run fits the filter.</p>}
    </>
  )
}

const spreadSaid = (name: string, values: Cell[], members: number[]): preact.ComponentChildren => {
  const spread = isNumeric(values) ? spreadOf(values, members) : null
  if (!spread) { const texts = [...new Set(members.map((row) => said(name, values[row])))]; return texts.length > 3 ? `${texts.length} different` : texts.join(", ") }
  if (isSum(name)) return said(name, spread.mean * spread.count)
  if (spread.low === spread.high) return said(name, spread.low)
  const range = `${said(name, spread.low)} to ${said(name, spread.high)}`
  return isSetting(name) ? range : <>{said(name, spread.mean)}<div class="quiet">{range}</div></>
}

function Groups() {
  const { columns: values } = listing.value
  const shown = ["rank_s", ...columns.value].filter((name, at, all) => !groupColumns.value.includes(name) && !(groupBy.value.startsWith(BUT) && isSetting(name)) && all.indexOf(name) === at)
  const { metric } = leading(listing.value)
  // Of groups, the best one is first.
  const { column, isDown } = sorting.value || !metric ? sort.value : firstSort(metric, listing.value)
  const groups = grouped(listing.value, rows.value, groupColumns.value).sort((a, b) => compared(valueOf(listing.value, column, a.rows), valueOf(listing.value, column, b.rows), isDown))
  const best = (members: number[]): number => members.reduce((least, row) => (compared(values[metric!][row], values[metric!][least], firstSort(metric!, listing.value).isDown) < 0 ? row : least))
  const all = (members: number[]): boolean => members.every((row) => chosen.value.has(values.path[row] as string))
  const choose = (members: number[]): void => {
    const paths = members.map((row) => values.path[row] as string)
    keep("runs", all(members) ? chosenPaths.value.filter((one) => !paths.includes(one)) : [...new Set([...chosenPaths.value, ...paths])])
  }
  return (
    <div class="wide-table"><table class="runs groups">
      <thead><tr><th><span class="unseen">compare</span></th><th scope="col">group</th><th scope="col" class="number">runs</th>{metric && <th scope="col">best run</th>}{shown.map((name) => <th key={name} scope="col" class={isNumeric(values[name]) ? "number" : ""} aria-sort={column === name ? (isDown ? "descending" : "ascending") : "none"}><button class="sort" onClick={() => put({ sort: writtenSort(column === name ? { column, isDown: !isDown } : firstSort(name, listing.value)) })}>{broken(name)}</button></th>)}</tr></thead>
      <tbody>{groups.map(({ key, rows: members }) => <tr key={key} class={all(members) ? "picked" : ""}>
        <td><input type="checkbox" aria-label={`compare the runs of ${key}`} checked={all(members)} onChange={() => choose(members)} /></td>
        <th scope="row"><button class="link" title="only these runs" onClick={() => put({ by: null, sort: metric && writtenSort(firstSort(metric, listing.value)), q: alike(listing.value, members[0], groupColumns.value, where.value) })}>{key}</button></th><td class="number">{whole(members.length)}</td>
        {metric && <td class="words"><a href={`?${new URLSearchParams({ run: values.path[best(members)] as string })}`}>{String(values.name[best(members)])}</a></td>}
        {shown.map((name) => <td key={name} class={isNumeric(values[name]) ? "number" : "words"}>{spreadSaid(name, values[name], members)}</td>)}
      </tr>)}</tbody>
    </table></div>
  )
}

// The tags that runs have, the most common first; one or none is chosen.
function Tags() {
  const { columns } = listing.value
  const counts = new Map<string, number>()
  for (const tag of (columns.tags as (string[] | null)[]).flatMap((one) => one ?? [])) counts.set(tag, (counts.get(tag) ?? 0) + 1)
  if (!counts.size) return null
  const filterOf = (tag: string): string => `${quoted(tag)} in tags`
  return <span class="chips tags" role="group" aria-label="tags">tags {[...counts].sort((a, b) => b[1] - a[1]).slice(0, TAGS).map(([tag, count]) => <button key={tag} class="label" aria-pressed={where.value === filterOf(tag)} onClick={() => put({ q: where.value === filterOf(tag) ? null : filterOf(tag) })}>{`${tag} ${whole(count)}`}</button>)}</span>
}

function Compare() {
  const paths = chosenPaths.value.filter((path) => listing.value.columns.path.includes(path))
  const [first, ...others] = paths
  if (!paths.length) return null
  const isTooMany = paths.length > listing.value.most
  return (
    <>
      <span class="chip">{`${whole(paths.length)} selected`}<button class="link" aria-label="select none" onClick={() => put({ runs: null })}>{" ×"}</button></span>
      {isTooMany ? <span class="quiet">{`up to ${listing.value.most} can be compared`}</span> : others.length > 0 && <a class="button strong" href={`?${new URLSearchParams([["run", first], ...others.map((one) => ["with", one]), ...groupColumns.value.map((one) => ["by", one])])}`}>{`compare ${counted(paths.length, "run")}`}</a>}
    </>
  )
}

export function Runs() {
  const { directory, note, problems, columns: values } = listing.value
  const groupable = Object.keys(values).filter((name) => isSetting(name) || ["group", "state", "causes", "commit", "host"].includes(name))
  const but: [string, string][] = differing.value.length > 1 ? [BUT, ...differing.value.map((name) => BUT + name)].map((name) => [name, `settings but ${short(name.slice(BUT.length)) || "the seed"}`]) : []
  const [reason, ...pointed] = wrong.value.split("\n")
  return (
    <div class="page list">
      <header>
        <h1>{directory.split("/").pop() || directory}</h1><Summary />
        <span class="end">
          <Columns />
          <Choice label="group by" value={groupBy.value} names={groupable} first={[["", "-"], ...but.slice(0, 1)]} last={but.slice(1)} pick={(name) => put({ by: name })} />
          <button id="live" aria-pressed={!isPaused.value} title="key p" onClick={() => { isPaused.value = !isPaused.value }}>live</button>
          <button title="key d" aria-label="dark or light" onClick={changeTheme}>◐</button>
        </span>
        {saidOfServer.value && <p class="said" role="status">{saidOfServer.value}</p>}
      </header>
      <main>
        <div class="filter">
          <input type="search" id="filter" spellcheck={false} autocomplete="off" placeholder="filter  ( / ), such as: config.lr < 0.3 and state == 'finished' and name ~ 'sweep'" aria-label="filter runs" aria-invalid={!!reason} value={where.value} onInput={(event) => put({ q: event.currentTarget.value })} />
          <Compare /><Tags />
        </div>
        {reason && <div class="said" role="alert">{reason}<pre>{pointed.join("\n")}</pre></div>}
        {allRows(listing.value).length ? <><Pictures />{groupColumns.value.length ? <Groups /> : <Rows />}</> : <p class="card">{note}</p>}
        {problems.length > 0 && <details class="card"><summary>{counted(problems.length, "run")} with more tags or settings than columns</summary><ul>{problems.slice(0, 50).map((line) => <li key={line}>{line}</li>)}</ul></details>}
      </main>
      <footer>{`${directory}. Keys: / filter, arrows or j and k choose a run, Enter opens it, d dark or light, p pause. In a terminal: distsummary runs; in Python: ds.open_runs. Made by distsummary.`}</footer>
    </div>
  )
}
