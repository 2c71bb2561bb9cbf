import uuid

import pytest


@pytest.fixture
def kafka_url():
    return f"kafka://127.0.0.1:39092/{uuid.uuid4().hex[:8]}."
