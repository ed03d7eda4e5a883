// Reads a list of AsyncAPI documents on stdin, and writes what @asyncapi/parser says of each.
import { Parser } from "@asyncapi/parser"

let text = ""
for await (const chunk of process.stdin) text += chunk

const parser = new Parser()
const said = []
for (const source of JSON.parse(text)) {
  const { document, diagnostics } = await parser.parse(source)
  said.push({
    operations: document?.operations().all().map((operation) => operation.id()) ?? null,
    replies: document?.operations().all().filter((operation) => operation.reply()).map((operation) => operation.id()) ?? null,
    problems: diagnostics.map(({ code, path, message, severity }) => ({ code, path: path.join("/"), message, severity })),
  })
}
process.stdout.write(JSON.stringify(said))
