// Devices whose tensors say "cuda:0", "cuda:1" and whose kernels are the CPU's. Every operator that libtorch_cuda
// registers is replaced by a strict fallback: it refuses what CUDA refuses (tensors of two devices, generators of the
// CPU), and counts kernels, copies, and how often the host waits.
//
// Not played: numerics of cuBLAS and cuDNN, asynchrony, times.
#define AT_PER_OPERATOR_HEADERS // not all operators: compiling takes half as long
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_strided_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/library.h>
#include <map>
#include <mutex>
#include <unordered_set>
#include <cstdlib>

using namespace at;
constexpr auto DEV = c10::DeviceType::CUDA;
constexpr auto KEY = c10::DispatchKey::CUDA;

static std::mutex lock_;
static std::map<std::string, int64_t> counts;
static bool counting = false;
static thread_local int inside = 0;
static std::unordered_set<std::string> exact;     // CUDA checks that all tensors are on one device, 0-dim too
static std::unordered_set<std::string> cpu_index; // CUDA takes CPU index tensors
constexpr int MOST = 8; // devices
static int devices = 1;
static thread_local int current = 0;
static int64_t held[MOST] = {}, peak[MOST] = {}, limit_ = int64_t(80) << 30;
static Device device(int index) { return Device(DEV, static_cast<c10::DeviceIndex>(index)); }

struct On { // a device for a while
  int before;
  explicit On(int index) : before(current) { current = index < 0 ? current : index; }
  ~On() { current = before; }
};

struct Inside { Inside() { ++inside; } ~Inside() { --inside; } };
static void count(const std::string& name, int64_t n = 1) {
  if (!counting || inside) return;
  std::lock_guard<std::mutex> g(lock_);
  counts[name] += n;
}

struct Header { size_t bytes; int index; };
struct Alloc final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    const int index = current;
    if (n == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, device(index)};
    {
      std::lock_guard<std::mutex> g(lock_);
      if (held[index] + int64_t(n) > limit_)
        TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory (emulated). Tried to allocate ", n, " bytes; ", held[index], " held of ", limit_);
      held[index] += n;
      peak[index] = std::max(peak[index], held[index]);
    }
    auto* p = static_cast<char*>(std::aligned_alloc(64, ((n + 64 + 63) / 64) * 64));
    TORCH_CHECK(p, "no memory");
    *reinterpret_cast<Header*>(p) = {n, index};
    return {p + 64, p, &del, device(index)};
  }
  static void del(void* ctx) {
    std::lock_guard<std::mutex> g(lock_);
    auto* header = reinterpret_cast<Header*>(ctx);
    held[header->index] -= header->bytes;
    std::free(ctx);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* d, const void* s, std::size_t n) const override { std::memcpy(d, s, n); }
};
static Alloc alloc;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return DEV; }
  Device exchangeDevice(Device d) const override { auto old = device(current); current = d.index(); return old; }
  Device getDevice() const override { return device(current); }
  void setDevice(Device d) const override { current = d.index(); }
  void uncheckedSetDevice(Device d) const noexcept override { current = d.index(); }
  c10::Stream getStream(Device d) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getDefaultStream(Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getNewStream(Device d, int) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream getStreamFromGlobalPool(Device d, bool) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const noexcept override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return devices; }
  void record(void** e, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override { *e = nullptr; }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
static Guard guard;

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return devices; }
  int getNumGPUs() const override { return devices; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex d) const override { current = d; }
  DeviceIndex exchangeDevice(DeviceIndex d) const override { auto old = current; if (d >= 0) current = d; return old; }
  DeviceIndex maybeExchangeDevice(DeviceIndex d) const override { return exchangeDevice(d); }
  Device getDeviceFromPtr(void*) const override { return device(current); }
  std::string showConfig() const override { return "emulated"; }
  long versionCuDNN() const override { return 8000; }
  long versionRuntimeCuDNN() const override { return 8000; }
  long versionCuDNNFrontend() const override { return 0; }
  long versionCUDART() const override { return 13000; }
  void deviceSynchronize(DeviceIndex) const override {}
};
static Hooks hooks;

static Tensor host(const Tensor& t) { // a CPU tensor of the same memory
  if (!t.defined() || t.device().is_cpu()) return t;
  auto keep = t.storage();
  auto storage = c10::Storage(c10::Storage::use_byte_size_t(), keep.nbytes(),
      c10::DataPtr(keep.mutable_data(), new c10::Storage(keep), [](void* c) { delete static_cast<c10::Storage*>(c); }, Device(kCPU)), nullptr, false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) made._set_conj(true);
  if (t.is_neg()) made._set_neg(true);
  return made;
}

static Tensor empty_mf(IntArrayRef size, std::optional<ScalarType> dt, std::optional<Layout>, std::optional<Device> d, std::optional<bool> pin, std::optional<MemoryFormat> mf) {
  On on(d ? d->index() : -1);
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  return at::detail::empty_generic(size, &alloc, c10::DispatchKeySet(KEY), dtype_or_default(dt), mf);
}
static Tensor empty_st(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dt, std::optional<Layout>, std::optional<Device> d, std::optional<bool>) {
  On on(d ? d->index() : -1);
  return at::detail::empty_strided_generic(size, stride, &alloc, c10::DispatchKeySet(KEY), dtype_or_default(dt));
}
static Tensor& my_copy_(Tensor& self, const Tensor& src, bool) {
  if (self.is_cuda() && src.is_cuda()) count("kernel aten::copy_");
  else if (self.is_cuda()) { count("H2D"); count("H2D bytes", src.nbytes()); }
  else { count("sync D2H"); count("D2H bytes", src.nbytes()); }
  Inside in;
  host(self).copy_(host(src));
  return self;
}
static Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  Inside in;
  if (dst.sizes() != self.sizes()) dst.resize_(self.sizes());
  host(dst).copy_(host(self));
  return dst;
}
static const Tensor& my_resize_(const Tensor& self, SymIntArrayRef size, std::optional<MemoryFormat> mf) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), mf);
}
static Tensor& set_storage(Tensor& r, Storage s, int64_t off, IntArrayRef size, IntArrayRef stride) {
  r.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(s));
  r.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, off);
  return r;
}
static Tensor& set_storage0(Tensor& r, Storage s) {
  int64_t n = s.nbytes() / r.dtype().itemsize();
  return set_storage(r, s, 0, {n}, {1});
}
static Tensor& set_tensor(Tensor& r, const Tensor& s) { return set_storage(r, s.storage(), s.storage_offset(), s.sizes(), s.strides()); }
static Tensor& set_nothing(Tensor& r) { r.resize_({0}); return r; }

// Refuses and counts; returns the number of the device on which it runs.
static int check(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto name = schema.operator_name();
  std::string full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
  const auto n = schema.arguments().size();
  auto args = torch::jit::last(stack, n);
  bool is_exact = exact.count(full), takes_index = cpu_index.count(full);
  bool mask = false, host_index = false;
  int index_of = -1;
  for (size_t i = 0; i < n; ++i) {
    const auto& a = args[i];
    auto one = [&](const Tensor& t, bool index) {
      if (!t.defined()) return;
      if (index) { if (t.scalar_type() == kBool || t.scalar_type() == kByte) mask = true; }
      if (t.is_cuda()) {
        if (index_of < 0) index_of = t.get_device();
        TORCH_CHECK(t.get_device() == index_of || (!is_exact && t.dim() == 0), "EMULATED: Expected all tensors to be on the same device, but found cuda:", index_of, " and ", t.device(), " in ", full);
        return;
      }
      if (index && takes_index) { host_index = true; return; }
      if (!is_exact && t.dim() == 0) return;
      TORCH_CHECK(false, "EMULATED: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and ", t.device(),
        "! (argument ", schema.arguments()[i].name(), " of shape ", t.sizes(), " in ", full, ")");
    };
    bool index = schema.arguments()[i].name() == "indices";
    if (a.isTensor()) one(a.toTensor(), index);
    else if (a.isTensorList()) for (const Tensor& t : a.toTensorVector()) one(t, index);
    else if (a.isOptionalTensorList()) { for (std::optional<Tensor> t : a.toOptionalTensorList()) if (t) one(*t, index); }
    else if (a.isGenerator()) {
      TORCH_CHECK(!a.toGenerator().defined() || a.toGenerator().device().is_cuda(), "EMULATED: Expected a 'cuda' device type for generator but found '", a.toGenerator().device(), "' in ", full);
    }
  }
  static const std::unordered_set<std::string> floating = {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::dot", "aten::mv", "aten::addmv", "aten::vdot", "aten::mm.out", "aten::bmm.out", "aten::addmm.out"};
  if (floating.count(full)) for (const auto& a : args) if (a.isTensor() && a.toTensor().defined())
    TORCH_CHECK(at::isFloatingType(a.toTensor().scalar_type()) || at::isComplexType(a.toTensor().scalar_type()), "EMULATED: '", full, "' not implemented for '", a.toTensor().scalar_type(), "'");
  if (host_index) count("sync H2D of an index (CPU index tensor)");
  static const std::unordered_set<std::string> syncing = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::repeat_interleave.Tensor", "aten::bincount", "aten::equal", "aten::is_set_to", "aten::nonzero_static", "aten::_linalg_check_errors", "aten::histc"};
  // CUDA does not ask for the sum of repeats that it is told
  const bool told = full == "aten::repeat_interleave.Tensor" && !args[n - 1].isNone();
  if (syncing.count(full) && !told) count("sync " + full);
  if (mask && takes_index) count("sync boolean mask in " + full);
  if (full != "aten::_local_scalar_dense") count("kernel " + full);
  return index_of < 0 ? current : index_of;
}
static void strict(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const int where = check(op, stack);
  On on(where);
  Inside in;
  at::native::cpu_fallback(op, stack);
  // cpu_fallback leaves results where the first tensor was, which may be a CPU scalar
  const auto n = op.schema().returns().size();
  const auto first = stack->size() - n;
  for (size_t i = first; i < stack->size(); ++i) {
    auto& v = (*stack)[i];
    if (v.isTensor() && v.toTensor().defined() && v.toTensor().is_cpu()) v = v.toTensor().to(device(where));
    else if (v.isTensorList()) {
      auto list = v.toTensorVector();
      for (auto& t : list) if (t.defined() && t.is_cpu()) t = t.to(device(where));
      v = c10::List<Tensor>(list);
    }
  }
}
static Tensor my_convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, SymIntArrayRef stride, SymIntArrayRef padding,
    SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding, c10::SymInt groups) {
  TORCH_CHECK(input.is_cuda() && weight.is_cuda() && (!bias || !bias->defined() || bias->is_cuda()), "EMULATED: convolution: Input type and weight type should be the same device");
  count("kernel aten::convolution");
  Tensor out;
  { Inside in;
    out = at::convolution_symint(host(input), host(weight), bias ? std::optional<Tensor>(host(*bias)) : bias, stride, padding, dilation, transposed, output_padding, groups).to(input.device()); }
  return out;
}
static std::tuple<Tensor, Tensor, Tensor> my_convolution_backward(const Tensor& grad, const Tensor& input, const Tensor& weight, OptionalSymIntArrayRef bias_sizes, SymIntArrayRef stride,
    SymIntArrayRef padding, SymIntArrayRef dilation, bool transposed, SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> mask) {
  TORCH_CHECK(grad.is_cuda() && input.is_cuda() && weight.is_cuda(), "EMULATED: convolution_backward: devices differ");
  count("kernel aten::convolution_backward", int(mask[0]) + int(mask[1]) + int(mask[2]));
  Inside in;
  auto [a, b, c] = at::convolution_backward_symint(host(grad), host(input), host(weight), bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask);
  auto up = [&](const Tensor& t) { return t.defined() ? t.to(input.device()) : t; };
  return {up(a), up(b), up(c)};
}
// its running statistics are changed without the schema saying so, which cpu_fallback would lose
static std::tuple<Tensor, Tensor, Tensor> my_native_batch_norm(const Tensor& x, const std::optional<Tensor>& w, const std::optional<Tensor>& b, const std::optional<Tensor>& m,
    const std::optional<Tensor>& v, bool training, double momentum, double eps) {
  auto down = [](const std::optional<Tensor>& t) { return t && t->defined() ? std::optional<Tensor>(host(*t)) : t; };
  for (auto* t : {&w, &b, &m, &v}) TORCH_CHECK(!*t || !(*t)->defined() || (*t)->is_cuda(), "EMULATED: batch_norm: devices differ");
  count("kernel aten::native_batch_norm");
  Inside in;
  auto [o, mean, inv] = at::native_batch_norm(host(x), down(w), down(b), down(m), down(v), training, momentum, eps);
  auto up = [&](const Tensor& t) { return t.defined() ? t.to(x.device()) : t; };
  return {up(o), up(mean), up(inv)};
}
static int64_t sdp_choice(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>, bool) { return 0; }

// what it is composed of asks the driver
static Tensor my_ldexp(const Tensor& x, const Tensor& exponent) {
  TORCH_CHECK(x.is_cuda() && exponent.is_cuda(), "EMULATED: ldexp: devices differ");
  count("kernel aten::ldexp");
  Inside in;
  return at::ldexp(host(x), host(exponent)).to(x.device());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("ldexp.Tensor", my_ldexp);
  m.impl("empty.memory_format", empty_mf);
  m.impl("empty_strided", empty_st);
  m.impl("copy_", my_copy_);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", my_resize_);
  m.impl("set_.source_Storage", set_storage0);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_nothing);
  m.impl("convolution", my_convolution);
  m.impl("convolution_backward", my_convolution_backward);
  m.impl("_fused_sdp_choice", sdp_choice);
  m.impl("native_batch_norm", my_native_batch_norm);
}

static std::vector<c10::RegistrationHandleRAII> handles;
static int install(std::vector<std::string> exact_, std::vector<std::string> index_, int devices_) {
  devices = devices_;
  exact = {exact_.begin(), exact_.end()};
  cpu_index = {index_.begin(), index_.end()};
  c10::impl::device_guard_impl_registry[static_cast<size_t>(DEV)].store(&guard);
  c10::SetAllocator(DEV, &alloc, 255);
  *reinterpret_cast<void**>(const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) = *reinterpret_cast<void**>(&hooks);
  static const std::unordered_set<std::string> keep = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::copy_", "aten::_copy_from_and_resize", "aten::resize_", "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::set_", "aten::convolution", "aten::convolution_backward", "aten::_fused_sdp_choice", "aten::native_batch_norm",
    "aten::as_strided", "aten::view", "aten::view.dtype", "aten::unfold", "aten::_reshape_alias", "aten::alias", "aten::view_as_real", "aten::view_as_complex", "aten::is_set_to"};
  auto& d = c10::Dispatcher::singleton();
  int made = 0;
  for (const auto& name : d.getRegistrationsForDispatchKey(KEY)) {
    std::string full = name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (full.substr(0, 6) != "aten::" || keep.count(full)) continue;
    handles.push_back(d.registerImpl(name, KEY, c10::KernelFunction::makeFromBoxedFunction<&strict>(), std::nullopt, nullptr, "emulated"));
    ++made;
  }
  return made;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("install", &install);
  m.def("start", [] { std::lock_guard<std::mutex> g(lock_); counts.clear(); counting = true; });
  m.def("stop", [] { std::lock_guard<std::mutex> g(lock_); counting = false; return counts; });
  m.def("current", [] { return current; });
  m.def("use", [](int index) { current = index; });
  m.def("held", [](int index) { return held[index]; });
  m.def("peak", [](int index) { return peak[index]; });
  m.def("reset_peak", [](int index) { peak[index] = held[index]; });
  m.def("set_limit", [](int64_t n) { limit_ = n; });
  m.def("limit", [] { return limit_; });
}
