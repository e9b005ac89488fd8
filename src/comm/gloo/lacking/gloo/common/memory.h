/* Stands in for a header that gloo's own headers include and Debian's libgloo-dev lacks. Cairn's code touches nothing
 * of it: objects that hold one are made and destroyed by gloo, in memory with room to spare (gloo.cc). */
#ifndef CAIRN__GLOO_LACKING_MEMORY_H
#define CAIRN__GLOO_LACKING_MEMORY_H

#include <memory>

namespace gloo {

template <typename T> class NonOwningPtr; /* only named */

template <typename T> class WeakNonOwningPtr { std::weak_ptr<T> object; };

} // namespace gloo

#endif
