// Runs a Python program in Pyodide: node run.mjs PYODIDE_FOLDER REPOSITORY PROGRAM WHEEL... [-- ARGUMENT...]
import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, repository, program, ...rest] = process.argv.slice(2);
const end = rest.includes("--") ? rest.indexOf("--") : rest.length;
const wheels = rest.slice(0, end);
const args = rest.slice(end + 1);

const { loadPyodide } = await import(pathToFileURL(join(folder, "pyodide.mjs")));
const python = await loadPyodide({ env: { PYTHONDONTWRITEBYTECODE: "1" } });
const extractDir = python.runPython("import site; site.getsitepackages()[0]");
for (const wheel of wheels) {
  python.unpackArchive(new Uint8Array(readFileSync(wheel)), "wheel", { extractDir });
}
python.FS.mkdir("/repository");
python.mountNodeFS("/repository", repository);
python.runPython(`import importlib, sys; importlib.invalidate_caches(); sys.argv = ["${basename(program)}", *${JSON.stringify(args)}]`);
// The exit status is the program's last expression or, where it has a coroutine function `main`, what that gives on Pyodide's loop.
try {
  let status = python.runPython(readFileSync(program, "utf8"), { filename: basename(program) });
  if (python.globals.has("main")) {
    status = await python.globals.get("main")();
  }
  process.exit(status ?? 0); // Pyodide's loop leaves the timers of cancelled calls to the page: Node would wait for them
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
