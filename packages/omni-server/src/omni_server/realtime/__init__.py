"""Speech to speech over a WebSocket, in the protocol of OpenAI's Realtime API; docs/realtime.md."""
