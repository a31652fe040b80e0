import threading

import pytest

from downloads import Server


@pytest.fixture
def server():
    running = Server()
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()
