import pytest
__all__ = ['EngineSuite', 'PipelineSuite', 'PluginSuite', 'PreprocessorSuite', 'RelayPair', 'RelaySuite', 'RouteSuite', 'RunnerSuite', 'Script', 'StageSuite', 'Suite', 'VocoderSuite', 'VoiceSuite', 'laws_of']

class Suite:
    since: ClassVar[str] = '0.1'

    def __init_subclass__(cls, **more: Any) -> None:
        ...

def laws_of(suites: Iterable[type]) -> list[str]:
    ...

class EngineSuite(Suite):

    @pytest.fixture
    def build(self) -> Callable[[], Engine]:
        ...

    @pytest.fixture
    def requests(self) -> Sequence[EngineRequest]:
        ...

    def test_replies_together_are_those_of_each_alone(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_outputs_are_counted_from_zero_and_the_last_says_why(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_max_tokens_is_kept(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_a_seed_decides_the_reply(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_an_abort_frees_everything_at_any_moment(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_an_id_in_use_is_refused(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_chunks_for_nobody_are_ignored(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_an_engine_without_requests_rests(self, build: Callable[[], Engine], requests: Sequence[EngineRequest]) -> None:
        ...

class RunnerSuite(EngineSuite):

    @pytest.fixture
    def runner(self) -> ARRunner:
        ...

    @pytest.fixture
    def build(self, runner: ARRunner) -> Callable[..., Engine]:
        ...

    def test_prompts_in_pieces_give_what_they_give_whole(self, build: Callable[..., Engine], requests: Sequence[EngineRequest]) -> None:
        ...

    def test_a_prefix_that_is_cached_changes_nothing(self, build: Callable[..., Engine], requests: Sequence[EngineRequest], runner: ARRunner) -> None:
        ...

    def test_every_sequence_that_is_opened_is_closed_once(self, build: Callable[..., Engine], requests: Sequence[EngineRequest], runner: ARRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        ...

class PipelineSuite(Suite):
    module: ClassVar[str]

    @pytest.fixture(scope='class')
    @classmethod
    def registry(cls) -> Plugins:
        ...

    @pytest.fixture(scope='class')
    @classmethod
    def pipeline(cls, registry: Plugins) -> PipelineConfig:
        ...

    @pytest.fixture(scope='class')
    @classmethod
    def checkpoint(cls, pipeline: PipelineConfig, tmp_path_factory: pytest.TempPathFactory) -> str:
        ...

    @pytest.fixture(scope='class')
    @classmethod
    def info(cls, pipeline: PipelineConfig, checkpoint: str) -> ModelInfo:
        ...

    @pytest.fixture(scope='class')
    @classmethod
    def served(cls, checkpoint: str, registry: Plugins) -> Iterator[Served]:
        ...

    @pytest.fixture(scope='class')
    @classmethod
    def asked(cls, served: Served) -> Request:
        ...

    def test_the_graph_of_every_variant_is_sound(self, pipeline: PipelineConfig) -> None:
        ...

    def test_what_it_says_of_variants_and_stages_names_those_there_are(self, pipeline: PipelineConfig) -> None:
        ...

    def test_every_stage_serves_some_modality(self, pipeline: PipelineConfig) -> None:
        ...

    def test_its_checkpoint_is_recognised(self, registry: Plugins, pipeline: PipelineConfig, checkpoint: str, info: ModelInfo) -> None:
        ...

    def test_a_configuration_can_be_written_down_and_read_again(self, pipeline: PipelineConfig, info: ModelInfo, tmp_path: Path) -> None:
        ...

    def test_a_request_is_answered_in_every_modality(self, served: Served, asked: Request, info: ModelInfo) -> None:
        ...

    def test_requests_together_are_answered_as_each_alone(self, served: Served, asked: Request) -> None:
        ...

    def test_who_leaves_frees_everything(self, served: Served, asked: Request) -> None:
        ...

class PluginSuite(Suite):
    module: ClassVar[str]

    @pytest.fixture
    def registry(self) -> Plugins:
        ...

    def test_it_is_light_to_import(self) -> None:
        ...

    def test_it_is_installed_under_an_entry_point(self) -> None:
        ...

    def test_its_hooks_are_known_and_give_what_they_should(self, registry: Plugins) -> None:
        ...

    def test_its_hooks_give_the_same_every_time(self, registry: Plugins) -> None:
        ...

    def test_what_it_registers_survives_a_pickle(self, registry: Plugins) -> None:
        ...

    def test_every_reference_resolves(self, registry: Plugins) -> None:
        ...

@dataclass(frozen=True, slots=True, kw_only=True)
class RelayPair:
    lender: Relay[Any, Any]
    borrower: Relay[Any, Any]
    target: str
    room_bytes: int
    to_memory: Callable[[Array], Any] = lambda data: data
    to_numpy: Callable[[Any], Array] = np.asarray

class RelaySuite(Suite):

    @pytest.fixture
    def make_pair(self, tmp_path: Path) -> MakePair:
        ...

    @pytest.mark.parametrize('share', [0.0, 0.01, 0.3, 0.5])
    def test_bytes_arrive_whole(self, make_pair: MakePair, share: float) -> None:
        ...

    def test_the_sender_may_reuse_its_memory_when_the_reader_has_it(self, make_pair: MakePair) -> None:
        ...

    def test_a_reference_opens_once(self, make_pair: MakePair) -> None:
        ...

    def test_room_is_bounded_and_comes_back(self, make_pair: MakePair) -> None:
        ...

    def test_what_is_not_sent_is_given_back(self, make_pair: MakePair) -> None:
        ...

    def test_what_a_dead_reader_was_lent_is_taken_back(self, make_pair: MakePair) -> None:
        ...

    def test_after_close_nothing_is_lent_and_nobody_waits(self, make_pair: MakePair) -> None:
        ...

    def test_nothing_is_left_after_close(self, make_pair: MakePair, tmp_path: Path) -> None:
        ...

    def test_it_counts(self, make_pair: MakePair) -> None:
        ...

class RouteSuite(Suite):

    @pytest.fixture
    def client(self) -> Client:
        ...

    @pytest.fixture
    def body(self) -> dict[str, Any]:
        ...

    def test_the_model_is_listed_and_can_be_asked_for(self, client: Client, body: dict[str, Any]) -> None:
        ...

    def test_an_answer_has_openais_shape(self, client: Client, body: dict[str, Any]) -> None:
        ...

    def test_a_stream_is_events_that_end_with_done(self, client: Client, body: dict[str, Any]) -> None:
        ...

    @pytest.mark.parametrize(('change', 'status'), [({'model': 'no-such-model'}, 404), ({'messages': []}, 400), ({'messages': 'Hello'}, 400), ({'temperature': -1}, 400), ({'modalities': ['smell']}, 400)])
    def test_what_is_wrong_is_told_as_openai_tells_it(self, client: Client, body: dict[str, Any], change: dict[str, Any], status: int) -> None:
        ...

    def test_what_is_no_request_is_refused(self, client: Client) -> None:
        ...

    def test_who_hangs_up_is_let_go_of(self, client: Client, body: dict[str, Any]) -> None:
        ...

    def test_operators_are_answered(self, client: Client) -> None:
        ...

class PreprocessorSuite(StageSuite):

    @pytest.fixture
    def bad(self) -> Sequence[Script]:
        ...

    def test_what_came_is_not_changed(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_bad_input_fails_its_own_request_as_the_callers_fault(self, build: Callable[[], Scheduler], scripts: Sequence[Script], bad: Sequence[Script]) -> None:
        ...
Script: TypeAlias = Callable[[str], Sequence[InboxItem]]

class StageSuite(Suite):

    @pytest.fixture
    def build(self) -> Callable[[], Scheduler]:
        ...

    @pytest.fixture
    def scripts(self) -> Sequence[Script]:
        ...

    def test_every_request_ends_once_and_nothing_follows(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_requests_together_are_answered_as_each_alone(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_a_request_again_is_answered_alike(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_an_abort_is_answered_and_leaves_nothing(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_it_leaves_on_close_with_requests_in_it(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_it_counts_what_every_stage_counts(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

    def test_what_it_hands_on_can_travel(self, build: Callable[[], Scheduler], scripts: Sequence[Script]) -> None:
        ...

class VocoderSuite(Suite):

    @pytest.fixture
    def vocoder(self) -> StreamingVocoder:
        ...

    @pytest.fixture
    def codes(self) -> Sequence[IntArray]:
        ...

    def test_the_codes_tell_something(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    def test_samples_are_finite_float32_in_a_row(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    @pytest.mark.parametrize('size', [1, 3, 8])
    def test_any_chunking_gives_the_samples_of_the_whole(self, vocoder: StreamingVocoder, codes: Sequence[IntArray], size: int) -> None:
        ...

    def test_replies_in_one_push_sound_as_each_alone(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    def test_a_reply_leaves_nothing_to_the_next(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    def test_no_frames_are_no_sound_and_change_nothing(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    def test_a_push_that_fails_changes_no_reply(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

    def test_as_many_replies_as_it_says_can_be_open(self, vocoder: StreamingVocoder, codes: Sequence[IntArray]) -> None:
        ...

class VoiceSuite(Suite):

    @pytest.fixture
    def info(self) -> ModelInfo:
        ...

    def test_names_differ_by_more_than_case(self, info: ModelInfo) -> None:
        ...

    def test_the_default_voice_is_one_of_them(self, info: ModelInfo) -> None:
        ...

    def test_there_is_a_sample_rate(self, info: ModelInfo) -> None:
        ...

    def test_a_recording_can_be_within_the_limits(self, info: ModelInfo) -> None:
        ...
