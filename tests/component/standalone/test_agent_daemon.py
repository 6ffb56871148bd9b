"""What an agent of a separate cluster has in memory."""

import subprocess
import sys


def test_it_imports_nothing_of_the_manager() -> None:
    """33 MB and 0.7 s of CPU for each agent of a node."""
    program = (
        "import sys\n"
        "import ai.backend.infra.rpc.zmq.agent, ai.backend.standalone.agent_daemon, ai.backend.standalone.daemon\n"
        "print([m for m in sys.modules if m.startswith(('ai.backend.manager', 'ai.backend.storage', 'aiohttp'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "[]\n"
