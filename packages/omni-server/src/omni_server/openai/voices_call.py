"""One voice to add: what is kept of it, if its form is right.

Knows the meaning of each field. Pure but for the clock and the store that is asked for room: a form
in, an `UploadedVoice` or an `OmniError` out. Whether the recording is a voice is found out later.
"""

from __future__ import annotations

import time
from typing import Final

from omni_core.errors import RequestError
from omni_core.media.voice import check_voice_text
from omni_core.specs import VoiceCloning
from omni_server.form import Form
from omni_server.schema.decode import convert_form
from omni_server.schema.voices import HINTS, VoiceForm
from omni_server.voices.known import Voices
from omni_server.voices.names import checked_name
from omni_server.voices.store import UploadedVoice, VoiceCard, taken

SAMPLE: Final = "audio_sample"


def parse_voice(form: Form, wanted: VoiceCloning, voices: Voices) -> UploadedVoice:
    """Check a form against what the model wants of a recording, and against the voices there are.

    Raises RequestError for a wrong field, ConflictError for a name that is taken, or no room.
    """
    asked = convert_form(form.fields, VoiceForm, hints=HINTS)
    name = checked_name(asked.name, "name")
    text = asked.ref_text.strip()
    check_voice_text(text, wanted, "ref_text")
    sample = form.files.get(SAMPLE)
    if sample is None:
        raise RequestError(
            f"Missing required parameter: '{SAMPLE}'; send the recording as a part of that name.",
            param=SAMPLE,
            code="missing_required_parameter",
        )
    if not sample:
        raise RequestError("The uploaded file is empty (0 bytes).", param=SAMPLE)
    if preset := voices.preset(name):
        raise taken(preset)
    voices.store.require_room(name, len(sample))
    card = VoiceCard(name=name, created_at=int(time.time()), text=text, consent=asked.consent)
    return UploadedVoice(card, bytes(sample))
