(() => {
  const form = document.getElementById('filter')
  const told = form.querySelector('output')
  const named = ['subject', 'peer', 'id', 'outcome']
  const windows = JSON.parse(form.dataset.windows), width = Number(form.dataset.width)
  // The tiles with numbers by time; the others stay those of the whole recording.
  const tiles = Object.entries({messages: (sum) => sum(1), exchanges: (sum) => sum(2), ok: (sum) => sum(2) - sum(3)}).map(([name, part]) => {
    const place = document.querySelector(`[data-metric="${name}"]`)
    place.closest('.tile').classList.add('live')
    return [place, place.textContent, part]
  })
  const value = (name) => form.elements[name].value.trim().toLowerCase()
  const moment = (name) => form.elements[name].value ? Date.parse(form.elements[name].value + 'Z') : NaN
  const fits = (data) => {
    for (const name of named) {
      const wanted = value(name)
      if (!wanted || data[name] === undefined) continue
      const given = data[name].toLowerCase()
      if (name === 'outcome' ? given !== wanted : !given.includes(wanted)) return false
    }
    if (data.time === undefined) return true
    return !(Number(data.time) < moment('from')) && !(Number(data.time) > moment('to'))
  }
  const show = () => {
    let shown = 0, all = 0
    for (const row of document.querySelectorAll('[data-subject], [data-peer], [data-outcome], [data-time]')) {
      row.hidden = !fits(row.dataset)
      all += 1
      shown += !row.hidden
    }
    for (const group of document.querySelectorAll('table.groups tbody'))
      group.hidden = !group.querySelector('tr[data-subject]:not([hidden])')
    const number = (n, what) => n.toLocaleString('en') + ' ' + what
    const within = windows.filter(([at]) => !(at + width <= moment('from')) && !(at > moment('to')))
    const sum = (place) => within.reduce((n, one) => n + one[place], 0)
    const zoomed = Boolean(moment('from') || moment('to'))
    document.body.classList.toggle('zoomed', zoomed)
    for (const [tile, whole, part] of tiles)
      tile.textContent = zoomed ? part(sum).toLocaleString('en') : whole
    const said = shown === all ? [] : [number(shown, 'of ') + number(all, 'rows')]
    if (zoomed) {
      const p95 = Math.max(0, ...within.map((one) => one[4]))
      said.push('in this time ' + number(sum(1), 'messages'), number(sum(2), 'requests'), number(sum(3), 'not ok'))
      if (p95) said.push('p95 up to ' + number(p95, 'ms'))
    }
    if (value('id') && !document.querySelector('#exchanges tr[data-id]:not([hidden]), #journeys [data-id]:not([hidden])'))
      said.push('the page has only a few exchanges of each kind: polybus journey --id finds the others')
    told.textContent = said.join(', ')
    form.classList.toggle('active', said.length > 0)
  }
  for (const plot of document.querySelectorAll('svg[data-begin]')) {
    const [begin, end, left, right] = ['begin', 'end', 'left', 'right'].map((name) => Number(plot.dataset[name]))
    const at = (event) => {
      const box = plot.getBoundingClientRect(), x = (event.clientX - box.left) / box.width * plot.viewBox.baseVal.width
      return begin + Math.min(Math.max((x - left) / (right - left), 0), 1) * (end - begin)
    }
    let first
    plot.addEventListener('pointerdown', (event) => { first = at(event) })
    plot.addEventListener('pointerup', (event) => {
      const [from, to] = [first, at(event)].sort((one, other) => one - other)
      if (to - from < (end - begin) / 100) return
      for (const [name, ms] of [['from', from], ['to', to]]) form.elements[name].value = new Date(ms).toISOString().slice(0, 23)
      show()
      plot.scrollIntoView({block: 'nearest'})
    })
  }
  form.addEventListener('input', show)
  form.addEventListener('submit', (event) => event.preventDefault())
  form.addEventListener('reset', () => setTimeout(show))
  form.hidden = false
  show()
})()
