// A kernel as a library: emulated_launch() runs a grid of it.
#include EMULATED_SOURCE

template <class Parameters>
void run_thread(void (*)(Parameters)) {
  emulated::cta.body = [](const void* parameters) { EMULATED_KERNEL(*static_cast<const Parameters*>(parameters)); };
}

extern "C" __attribute__((visibility("default"))) void emulated_launch(unsigned ctas, unsigned threads,
                                                                      const void* parameters) {
  const char* copies = std::getenv("EMULATED_COPIES");
  emulated::cta.early = copies != nullptr && std::strcmp(copies, "early") == 0;
  emulated::cta.parameters = parameters;
  run_thread(&EMULATED_KERNEL);
  for (emulated::cta.block = 0; emulated::cta.block < ctas; ++emulated::cta.block) emulated::run_cta(threads);
}
