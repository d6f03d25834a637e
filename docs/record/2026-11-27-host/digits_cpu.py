import time,torch,torch.nn as nn,torch.nn.functional as F
batch=64
net=nn.Sequential(nn.Conv2d(1,16,3,padding=1),nn.ReLU(),nn.MaxPool2d(2),nn.Conv2d(16,32,3,padding=1),nn.ReLU(),nn.MaxPool2d(2),nn.Flatten(),nn.Linear(128,64),nn.ReLU(),nn.Linear(64,10))
x=torch.rand(batch,1,8,8); y=torch.randint(0,10,(batch,))
for fused in (False,True):
    opt=torch.optim.Adam(net.parameters(),lr=2e-3,fused=fused)
    def step():
        opt.zero_grad(set_to_none=True); F.cross_entropy(net(x),y).backward(); opt.step()
    for _ in range(20): step()
    r=[]
    for _ in range(5):
        s=time.perf_counter()
        for _ in range(660): step()
        r.append(660*batch/(time.perf_counter()-s))
    print(fused, sorted(r))
