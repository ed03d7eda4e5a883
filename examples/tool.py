"""A command-line tool without async: ``python tool.py URL get 4``, ``python tool.py URL sum`` (calls hello_server.py)."""

import argparse
import sys

from polybus import BusError, sync


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="for example ubre+ws://127.0.0.1:8000/bus")
    commands = parser.add_subparsers(dest="command", required=True)
    get = commands.add_parser("get", help="what is in a tank")
    get.add_argument("number", type=int)
    commands.add_parser("sum", help="what is in all of them")
    arguments = parser.parse_args()
    try:
        with sync.connect(arguments.url, wait=2) as bus:
            if arguments.command == "get":
                tank = bus.request("tank.get", {"number": arguments.number}, timeout=5)
                print(f"tank {tank['number']}: {tank['litres']} l")
            else:
                tanks = [bus.request("tank.get", {"number": number}, timeout=5) for number in range(10)]
                print(f"{sum(tank['litres'] for tank in tanks)} l in {len(tanks)} tanks")
    except ValueError as error:  # not a URL
        parser.error(str(error))
    except BusError as error:
        print(f"tool: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


sys.exit(main())
