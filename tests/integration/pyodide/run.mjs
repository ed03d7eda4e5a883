// Runs Python programs in one Pyodide: node run.mjs PYODIDE_FOLDER REPOSITORY PROGRAM,PROGRAM WHEEL... [-- ARGUMENT...]
import { readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, repository, programs, ...rest] = process.argv.slice(2);
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
python.runPython("import importlib; importlib.invalidate_caches()");
// The exit status is a program's last expression or, where it has a coroutine function `main`, what that gives on Pyodide's loop.
let status = 0;
try {
  for (const program of programs.split(",")) {
    const globals = python.toPy({ __name__: "__main__" });
    python.runPython(`import sys; sys.argv = ["${basename(program)}", *${JSON.stringify(args)}]`);
    let ended = python.runPython(readFileSync(program, "utf8"), { filename: basename(program), globals });
    if (globals.has("main")) {
      ended = await globals.get("main")();
    }
    status ||= ended ?? 0;
  }
} catch (error) {
  console.error(error.message);
  status = 1;
}
process.exit(status); // Pyodide's loop leaves the timers of cancelled calls to the page: Node would wait for them
