import threading

import pytest

from downloads import Server
from layout_trees import folders


@pytest.fixture
def server():
    running = Server()
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.fixture
def pacs(tmp_path):
    folders(tmp_path / "PACS", "pacs", per_class=10)
    return tmp_path
