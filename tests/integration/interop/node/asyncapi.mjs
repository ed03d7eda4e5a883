// Reads lists of AsyncAPI documents on stdin, a line each, and writes what @asyncapi/parser says of each document, a line for a list.
import { createInterface } from "node:readline"
import { Parser } from "@asyncapi/parser"

const parser = new Parser()
for await (const line of createInterface({ input: process.stdin })) {
  const said = []
  for (const source of JSON.parse(line)) {
    const { document, diagnostics } = await parser.parse(source)
    said.push({
      operations: document?.operations().all().map((operation) => operation.id()) ?? null,
      replies: document?.operations().all().filter((operation) => operation.reply()).map((operation) => operation.id()) ?? null,
      problems: diagnostics.map(({ code, path, message, severity }) => ({ code, path: path.join("/"), message, severity })),
    })
  }
  process.stdout.write(JSON.stringify(said) + "\n")
}
