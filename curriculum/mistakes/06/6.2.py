# %% wrong="loses-tokens"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        request.tokens = list(request.prompt)  # it begins again
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="loses-tokens"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        fresh = Request(request.name, request.prompt, request.end - len(request.prompt))
        self.waiting.insert(0, fresh)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="lost-request"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="livelock"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                others = [other for other in self.running if other is not request] or [request]
                preempted.append(others[-1])  # the latest, but never the one that asks
                self.preempt(others[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="livelock"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                victim = self.running[0] if request is self.running[-1] else self.running[-1]
                preempted.append(victim)
                self.preempt(victim)
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="wrong-victim"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[0])
                self.preempt(self.running[0])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="wrong-victim"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(request)  # who asks when there is nothing left waits
                self.preempt(request)
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="wrong-victim"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                largest = max(self.running, key=lambda other: other.blocks)  # frees the most
                preempted.append(largest)
                self.preempt(largest)
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="too-many"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                while self.running[-1] is not request:  # all the younger ones
                    preempted.append(self.running[-1])
                    self.preempt(self.running[-1])
                if not self.num_free:
                    preempted.append(request)
                    self.preempt(request)
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="too-many"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free > 1:  # one in reserve
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="leak"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="leak"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="leak"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="back-of-queue"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.append(request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="back-of-queue"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.append(request)
        self.waiting.sort(key=lambda other: len(other.tokens))  # the short ones first

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="prompt-only"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = -(-len(request.prompt) // self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="prompt-only"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and -(-len(self.waiting[0].prompt) // self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = -(-len(request.prompt) // self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="half-admitted"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and self.num_free:
            request = self.waiting.pop(0)
            request.blocks = 1  # the first chunk; the rest comes as it is needed
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="half-admitted"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and self.num_free > 0:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="other-state"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop()  # the last in, whose blocks nobody has looked at
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="left-waiting"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) < self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="left-waiting"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        if self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="no-room"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                return preempted  # there is a block, so there is room
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="no-room"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                break  # it runs on without
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="other-state"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.insert(0, request)
            admitted.append(request)
        return admitted


# %% wrong="other-state"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        for request in self.running:
            request.tokens.append(0)  # the model does this
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="crashed"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.num_free += request.blocks
        request.blocks = 0
        del self.running[request.name]
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% right="deques, and a count computed at once"
from collections import deque


class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = deque(), deque()

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self._move(request, -request.blocks)
        return [request.name for request in served]

    def _move(self, request, blocks):
        """Give a request so many blocks; take them if the number is negative."""
        request.blocks += blocks
        self.num_free -= blocks

    def preempt(self, request):
        self._move(request, -request.blocks)
        self.running.remove(request)
        self.waiting.appendleft(request)

    def make_room(self, request):
        wanted = blocks_for(request, self.block_size) - request.blocks
        victims = []
        while wanted > self.num_free:
            victims.append(self.running[-1])
            self.preempt(self.running[-1])
            if victims[-1] is request:
                return victims
        self._move(request, wanted)
        return victims

    def admit(self):
        admitted = []
        while self.waiting:
            wanted = blocks_for(self.waiting[0], self.block_size)
            if wanted > self.num_free:
                break
            admitted.append(self.waiting.popleft())
            self._move(admitted[-1], wanted)
        self.running.extend(admitted)
        return admitted


# %% right="free blocks computed, victims as a slice"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    @property
    def num_free(self):
        return self.num_blocks - sum(request.blocks for request in self.running)

    def step(self):
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        at = self.running.index(request)
        self.running[at : at + 1] = []
        request.blocks = 0
        self.waiting = [request] + self.waiting

    def make_room(self, request):
        need = -(-len(request.tokens) // self.block_size) - request.blocks
        at, count = self.running.index(request), 0
        while self.num_free + sum(r.blocks for r in self.running[len(self.running) - count :]) < need:
            count += 1
            if count == len(self.running) - at:
                break
        victims = self.running[::-1][:count]
        for victim in victims:
            self.preempt(victim)
        if request in self.running:
            request.blocks += need
        return victims

    def admit(self):
        came = []
        for request in list(self.waiting):
            need = -(-len(request.tokens) // self.block_size)
            if need > self.num_free:
                return came
            self.waiting.remove(request)
            request.blocks = need
            self.running.append(request)
            came.append(request)
        return came


# %% wrong="overtaken"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        """One step; returns the names of the requests that got a token."""
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:  # not preempted by an older one
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        for request in list(self.waiting):
            if blocks_for(request, self.block_size) > self.num_free:
                continue  # a smaller one may fit
            self.waiting.remove(request)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="preempt-alone"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        """One step; returns the names of the requests that got a token."""
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:  # not preempted by an older one
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running.pop())
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="finished-without-room"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        """One step; returns the names of the requests that got a token."""
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:  # not preempted by an older one
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        if len(request.tokens) + 1 == request.end:
            return preempted  # it ends anyway
        while request in self.running and request.blocks < blocks_for(request, self.block_size):
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted


# %% wrong="early-block"
class Server:
    def __init__(self, num_blocks, block_size):
        self.num_free = num_blocks
        self.block_size = block_size
        self.waiting, self.running = [], []

    def add(self, name, prompt, new_tokens):
        self.waiting.append(Request(name, prompt, new_tokens))

    def step(self):
        """One step; returns the names of the requests that got a token."""
        served, preempted = [], []
        for request in list(self.running):
            if request in self.running:  # not preempted by an older one
                preempted += self.make_room(request)
                if request in self.running:
                    served.append(request)
        if not preempted:
            served += self.admit()
        for request in served:
            request.tokens.append(next_token(request.tokens))
            if len(request.tokens) == request.end:
                self.running.remove(request)
                self.num_free += request.blocks
                request.blocks = 0
        return [request.name for request in served]

    def preempt(self, request):
        self.running.remove(request)
        self.num_free += request.blocks
        request.blocks = 0
        self.waiting.insert(0, request)

    def make_room(self, request):
        preempted = []
        while request in self.running and request.blocks < len(request.tokens) // self.block_size + 1:
            if self.num_free:
                self.num_free -= 1
                request.blocks += 1
            else:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
        return preempted

    def admit(self):
        admitted = []
        while self.waiting and blocks_for(self.waiting[0], self.block_size) <= self.num_free:
            request = self.waiting.pop(0)
            request.blocks = blocks_for(request, self.block_size)
            self.num_free -= request.blocks
            self.running.append(request)
            admitted.append(request)
        return admitted
