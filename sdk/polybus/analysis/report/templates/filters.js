(() => {
  const form = document.getElementById('filter')
  const told = form.querySelector('output')
  const named = ['subject', 'peer', 'outcome']
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
    told.textContent = shown === all ? '' : shown.toLocaleString('en') + ' of ' + all.toLocaleString('en') + ' rows'
  }
  form.addEventListener('input', show)
  form.addEventListener('submit', (event) => event.preventDefault())
  form.addEventListener('reset', () => setTimeout(show))
  form.hidden = false
  show()
})()
